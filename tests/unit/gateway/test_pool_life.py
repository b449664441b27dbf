"""The pool through random lives of endpoints: counts, standing and reasons stay true."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target

URLS = ("http://a", "http://b", "http://c")
REPORTS = (
    ProbeReport(ready=True, models=({"id": "m"},), running=2, waiting=1),
    ProbeReport(ready=True, models=None),
    ProbeReport(ready=True, draining=True),
    ProbeReport(ready=False, reason="loading"),
    ProbeReport(ready=False),
)


class PoolLife(RuleBasedStateMachine):
    """Targets come and go, report, fail and serve, in any order."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()
        self.targets: dict[str, Target] = {}
        self.ours: dict[str, int] = {}
        self.life: dict[str, int] = {}
        self.reported: dict[str, ProbeReport] = {}
        self.suspects: set[str] = set()

    @rule(
        wanted=st.lists(
            st.builds(Target, st.sampled_from(URLS), st.just("n"), st.booleans(), st.booleans()),
            unique_by=lambda target: target.url,
        )
    )
    def set_targets(self, wanted: list[Target]) -> None:
        came, went = self.pool.set_targets(wanted)
        known = {target.url for target in wanted}
        assert came == known - self.targets.keys()
        assert went == self.targets.keys() - known
        for url in went:
            self.life[url] = self.life.get(url, 0) + 1
            self.ours.pop(url, None)
            self.reported.pop(url, None)
            self.suspects.discard(url)
        self.targets = {target.url: target for target in wanted}

    @rule(url=st.sampled_from(URLS), report=st.sampled_from(REPORTS))
    def report(self, url: str, report: ProbeReport) -> None:
        self.pool.report(url, report)
        if url in self.targets:
            self.reported[url] = report
            self.suspects.discard(url)

    @rule(url=st.sampled_from(URLS))
    def suspect(self, url: str) -> None:
        self.pool.suspect(url, "did not answer")
        if url in self.targets:
            self.suspects.add(url)

    @rule(target=requests, url=st.sampled_from(URLS))
    def begin(self, url: str) -> tuple[str, int, int, bool]:
        ticket = self.pool.begin(url)
        known = url in self.targets
        if known:
            self.ours[url] = self.ours.get(url, 0) + 1
        return url, ticket, self.life.get(url, 0), known

    @rule(request=consumes(requests))
    def end(self, request: tuple[str, int, int, bool]) -> None:
        url, ticket, life, known = request
        self.pool.end(url, ticket)
        if (life, known) == (self.life.get(url, 0), True):
            self.ours[url] -= 1

    @invariant()
    def the_snapshot_is_the_targets_with_our_own_counts(self) -> None:
        snapshot = {endpoint.url: endpoint for endpoint in self.pool.snapshot()}
        assert snapshot.keys() == self.targets.keys()
        for url, endpoint in snapshot.items():
            assert endpoint.in_flight == self.ours.get(url, 0)
            assert endpoint.load >= endpoint.in_flight

    @invariant()
    def only_what_both_sides_call_well_is_ready(self) -> None:
        for endpoint in self.pool.snapshot():
            target, report = self.targets[endpoint.url], self.reported.get(endpoint.url)
            well = target.ready and report is not None and report.ready
            assert endpoint.ready == (well and endpoint.url not in self.suspects)
            assert endpoint.draining == (target.draining or (report is not None and report.draining))

    @invariant()
    def whoever_is_not_ready_has_a_reason(self) -> None:
        reasons = self.pool.reasons()
        assert bool(reasons) == any(not endpoint.ready for endpoint in self.pool.snapshot())
        assert all(reasons.values())


PoolLife.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
test_no_life_of_endpoints_makes_the_pool_lie = PoolLife.TestCase
