"""Models in a real S3, also by the client of Google's buckets, and a real registry; downloads that go on."""

import io
import json
import signal
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from file_server import file_server
from mamba_planner.model_report import ModelReport
from mamba_server.model.checkpoint.errors import DownloadFailed, SourceNotFound
from mamba_server.model.checkpoint.source import facts_of_remote, resolve
from matrix_size import LARGE
from model_stores import Registry, registry, request, s3_server
from servers import Command, Server, call
from signed_bucket import new_key, signed_bucket

pytestmark = pytest.mark.slow
TINY = Path(__file__).parents[2] / "server" / "mamba_server" / "builtin" / "tiny-recall"
FILES = {path.name: path.read_bytes() for path in sorted(TINY.iterdir()) if path.is_file()}
OBJECT = bytes(range(256)) * 50_000
RAW = "application/vnd.cncf.model.weight.v1.raw"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path / "hub"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server("models") as url:
        obstore = pytest.importorskip("obstore", reason="the extra `buckets` is not installed")
        environment = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
        store = obstore.store.S3Store(
            "models", endpoint=url, client_options={"allow_http": True}, **environment
        )
        for name, data in FILES.items():
            obstore.put(store, f"team/tiny/{name}", data)
        obstore.put(store, "team/tiny/notes/README.md", b"x")
        obstore.put(store, "large/config.json", b"{}")
        obstore.put(store, "large/model.safetensors", OBJECT, use_multipart=True, chunk_size=5 << 20)
        yield url


@pytest.fixture
def keys(s3: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def packed(mode: str, prefix: str = "") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in FILES.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return target.getvalue()


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.skipif(not LARGE, reason="an engine for each source costs seconds: MAMBASERVE_GATES=large")
@pytest.mark.usefixtures("keys")
def test_an_engine_serves_a_model_of_a_bucket(tmp_path: Path) -> None:
    with Server("s3://models/team/tiny") as server:
        status, answer = call(
            f"{server.url}/v1/chat/completions",
            {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
        )
    assert (status, answer["model"]) == (200, "tiny")
    assert set(content(tmp_path / "hub")) >= set(FILES)


@pytest.mark.usefixtures("keys")
def test_objects_of_one_part_and_of_several_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    found = content(resolve("s3://models/large", say=said.append))
    assert found == {"config.json": b"{}", "model.safetensors": OBJECT}
    assert said == [], "every file had a checksum"
    facts = facts_of_remote("s3://models/team/tiny")
    assert (facts.config, facts.weights_bytes) == (
        json.loads(FILES["config.json"]), len(FILES["model.safetensors"])
    )  # fmt: skip

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(DownloadFailed, match=r"bucket models at http://127\.0\.0\.1:9 cannot be reached"):
        resolve("s3://models/other")


@pytest.mark.usefixtures("cache")
def test_a_bucket_of_google_s_is_read_by_the_xml_that_both_clouds_speak(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = {"x-amz-acl": "public-read", "Content-Type": "application/octet-stream"}
    for name, data in FILES.items():
        request("PUT", f"{s3}/models/public/{name}", data, everybody)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", s3)
    said: list[str] = []
    assert content(resolve("gs://models/public", say=said.append)) == FILES
    assert said == [], "every file had a checksum"
    with pytest.raises(DownloadFailed, match=r"refuses the credentials .* check GOOGLE_APPLICATION_CRED"):
        resolve("gs://models/team/tiny")
    with pytest.raises(SourceNotFound, match="there is no bucket none-here at"):
        resolve("gs://none-here/a")


@pytest.mark.usefixtures("cache")
def test_a_bucket_of_google_s_is_read_with_the_signature_of_a_service_account(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = {"x-amz-acl": "public-read", "Content-Type": "application/octet-stream"}
    for name, data in FILES.items():
        request("PUT", f"{s3}/models/signed/{name}", data, everybody)
    with signed_bucket(s3, tmp_path) as bucket:
        monkeypatch.setenv("SSL_CERT_FILE", str(bucket.certificate))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", bucket.account(new_key()))
        with pytest.raises(DownloadFailed, match=r"refuses the credentials .* check GOOGLE_APPLICATION_CRED"):
            resolve("gs://models/signed")
        assert not bucket.reads
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", bucket.account())
        assert content(resolve("gs://models/signed")) == FILES
        facts = facts_of_remote("gs://models/signed")
        assert facts.weights_bytes == len(FILES["model.safetensors"])


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("s3://none-here/a", "there is no bucket none-here at"),
        ("s3://models/none", r"there is no config\.json \(nothing of a model is there\): name the prefix"),
        ("s3://models/team/none.tar", r"has no object team/none\.tar"),
    ],
)
def test_what_a_bucket_does_not_have_is_named(uri: str, words: str) -> None:
    with pytest.raises(SourceNotFound, match=words):
        resolve(uri)


@pytest.mark.usefixtures("cache")
def test_artifacts_of_files_and_of_archives_are_the_same_model(
    artifacts: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [(RAW, data, {"org.cncf.model.filepath": name}) for name, data in FILES.items()]
    digest = artifacts.push("org/raw", "v1", files)
    artifacts.push("org/kit", "v1", [("application/vnd.kitops.modelkit.model.v1.tar", packed("w"), {})])
    image = [("application/vnd.oci.image.layer.v1.tar+gzip", packed("w:gz", "models/"), {})]
    artifacts.push("org/image", "v1", image)

    uri = f"oci://{artifacts.host}/org/raw"
    with pytest.raises(DownloadFailed, match="access is refused: check the reference, and the credentials"):
        resolve(f"{uri}:v1")
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", artifacts.login)
    directory = resolve(f"{uri}:v1")
    assert content(directory) == FILES
    assert resolve(f"{uri}@{digest}") == directory
    for name in ("kit", "image"):
        archive = f"oci://{artifacts.host}/org/{name}:v1"
        assert facts_of_remote(archive).config == json.loads(FILES["config.json"])
        assert content(resolve(archive)) == FILES
    with pytest.raises(SourceNotFound, match="has no org/none with the reference v1"):
        resolve(f"oci://{artifacts.host}/org/none:v1")

    weights = FILES["model.safetensors"]
    artifacts.damage(weights)
    artifacts.push("org/again", "v1", [(RAW, data + b" ", notes) for _, data, notes in files[:1]] + files[1:])
    with pytest.raises(
        DownloadFailed, match=r"model\.safetensors was downloaded twice, and its sha256 is not"
    ):
        resolve(f"oci://{artifacts.host}/org/again:v1")


@pytest.mark.skipif(not LARGE, reason="a hundred mebibytes and two processes: MAMBASERVE_GATES=large")
def test_a_killed_download_goes_on_where_it_was(cache: Path, tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [100 << 20], "data_offsets": [0, 100 << 20]}}).encode()
    large = struct.pack("<Q", len(header)) + header + bytes(100 << 20)
    reached, release = Event(), Event()
    with file_server({"m/config.json": FILES["config.json"], "m/model.safetensors": large}) as server:
        last = 3 * (32 << 20)

        def hold(path: str, start: int) -> int | None:
            if start < last:
                return None
            # The other pieces are on disk once the journal says so.
            while not release.wait(0.05):
                notes = list(cache.rglob("*.pieces"))
                if notes and notes[0].read_text().count("piece") >= 4:
                    reached.set()
            return 0

        server.before = hold
        with Command("download", f"{server.url}/m") as first:
            assert reached.wait(120)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
            release.set()
        server.before, server.asked = lambda _path, _start: None, []

        with Command("download", f"{server.url}/m", "--report", str(tmp_path / "report")) as again:
            assert again.process.wait() == 0, again.output
    assert "resuming a download" in again.output
    assert [part for part in server.asked if "safetensors" in part[0]] == [
        ("m/model.safetensors", last, len(large))
    ]
    commit = ModelReport.read((tmp_path / "report").read_text()).commit
    [copy] = cache.rglob("model.safetensors")
    assert copy.parent.name == commit
    assert copy.read_bytes() == large
