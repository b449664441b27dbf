"""`make dashboards`: writes what the chart ships, the dashboards as JSON and the rules as YAML.

`--check` writes nothing and fails where a file is not what would be written.
"""

import argparse
import json
import sys
from pathlib import Path

import yaml

from observability.alerts import rule_file
from observability.dashboards import DASHBOARDS

CHART = Path(__file__).resolve().parent.parent / "charts/mambaserve"
HEAD = "# Written by `make dashboards` from observability/alerts.py; edit that.\n"


def files() -> dict[Path, str]:
    """Return the text of each file, by its path."""
    rules = HEAD + yaml.safe_dump(rule_file(), sort_keys=False, width=1000)
    made = {
        CHART / f"dashboards/{each.uid}.json": json.dumps(each.to_json(), indent=1) + "\n"
        for each in DASHBOARDS
    }
    return {**made, CHART / "files/rules.yaml": rules}


def main() -> int:
    """Write the files; with --check, return 1 when a file is out of date."""
    parser = argparse.ArgumentParser(description="Write the chart's dashboards and alerting rules.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    check = parser.parse_args().check
    made = files()
    gone = [path for path in (CHART / "dashboards").glob("*.json") if path not in made]
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    for path in [*stale, *gone]:
        if check:
            print(f"{path.relative_to(CHART.parent.parent)} is out of date: run `make dashboards`")
        elif path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path])
        else:
            path.unlink()
    return int(check and bool(stale or gone))


if __name__ == "__main__":
    sys.exit(main())
