import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monai_fedskew.data.abide.fetch import fetch
from monai_fedskew.data.abide.prepare import prepare
from monai_fedskew.errors import ConfigError, DataError

TABLE = "Phenotypic_V1_0b_preprocessed1.csv"
SCANS = Path("ABIDE_pcp", "cpac", "filt_noglobal")


class Server(http.server.ThreadingHTTPServer):
    """A copy of the original's layout on the loopback; `faults` maps a file's name to what goes wrong with it."""

    def __init__(self, source: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.source = source
        self.faults: dict[str, str] = {}
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        """Address to give to fetch."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Serve one file, or break it off in the middle, cut it, refuse it."""

    server: Server

    def do_GET(self) -> None:  # noqa: N802 - named by http.server
        """Answer one request."""
        name = self.path.rsplit("/", 1)[-1]
        self.server.asked.append(name)
        fault = self.server.faults.get(name, "")
        if fault.isdigit():
            self.send_error(int(fault))
            return
        path = self.server.source / "ABIDE_pcp" / name if name.endswith(".csv") else self.server.source / SCANS / name
        if name.endswith(".1D"):
            assert self.path == f"/Outputs/cpac/filt_noglobal/rois_ho/{name}"
        body = path.read_bytes()
        sent = body[: len(body) // 2 + 7] if fault else body
        self.send_response(200)
        self.send_header("Content-Length", str(len(sent if fault == "cut" else body)))
        self.end_headers()
        self.wfile.write(sent)
        if fault == "reset":
            # closing with unread options makes the kernel send RST instead of FIN
            self.connection.setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


@pytest.fixture
def server(study, tmp_path: Path) -> Iterator[Server]:  # noqa: ANN001
    """Two samples, three scans of NYU and one of UM_1."""
    server = Server(study({"NYU": [40, 40, 38], "UM_1": [36]}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def names(folder: Path) -> list[str]:
    """All data files below a fetched folder, whatever their state; nilearn adds a README.md."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != "README.md")


def test_what_is_fetched_can_be_prepared(server: Server, tmp_path: Path) -> None:
    """The files arrive byte for byte in nilearn's layout, short scans are named, a second call asks for nothing."""
    data, calls = tmp_path / "fetched", []
    done = fetch(data, sites=("NYU",), url=server.url, progress=lambda *step: calls.append(step))
    assert (done.files, done.new, done.repaired) == (3, 3, ())
    assert done.shorter == (("NYU", "NYU_0000003_rois_ho.1D", 38, 40),)
    assert calls[0] == (0, 3, "NYU_0000001")
    assert calls[-1][:2] == (3, 3)
    for path in (data / SCANS).iterdir():
        assert path.read_bytes() == (server.source / SCANS / path.name).read_bytes()
    server.asked.clear()
    assert fetch(data, sites=("NYU",), url=server.url).new == 0
    assert server.asked == []
    (site,) = [m for m in prepare(data, tmp_path / "out") if m.subjects]
    assert len(site.subjects) == 3


@pytest.mark.parametrize("fault", ["short", "reset", "cut"])
def test_a_broken_transfer_is_found_and_taken_up_again(server: Server, tmp_path: Path, fault: str) -> None:
    """Less than announced, a reset connection, or a file cut at its source: an error names it, nothing broken stays."""
    name, data = "NYU_0000002_rois_ho.1D", tmp_path / "fetched"
    server.faults[name] = fault
    with pytest.raises(DataError, match=f"{name}.*1 of 3 scans are there; run the same command again"):
        fetch(data, sites=("NYU",), url=server.url)
    assert [path.name for path in (data / SCANS).glob("*.1D")] == ["NYU_0000001_rois_ho.1D"]
    server.faults.clear()
    server.asked.clear()
    assert fetch(data, sites=("NYU",), url=server.url).new == 2
    assert "NYU_0000001_rois_ho.1D" not in server.asked
    for path in (data / SCANS).glob("*.1D"):
        assert path.read_bytes() == (server.source / SCANS / path.name).read_bytes()
    assert names(data) == [*(f"NYU_000000{k}_rois_ho.1D" for k in (1, 2, 3)), TABLE]


@pytest.mark.parametrize("status", ["403", "404"])
@pytest.mark.parametrize("name", [TABLE, "NYU_0000001_rois_ho.1D"])
def test_a_refused_file_is_one_error(server: Server, tmp_path: Path, status: str, name: str) -> None:
    """403 and 404, of the table or a scan, name the file and the status."""
    server.faults[name] = status
    with pytest.raises(DataError, match=f"{name}.*{status}.*run the same command again"):
        fetch(tmp_path / "fetched", url=server.url)


def test_a_table_that_is_no_table_is_removed(server: Server, tmp_path: Path) -> None:
    """A page of text instead of the table is an error, and is fetched again the next time."""
    table = server.source / "ABIDE_pcp" / TABLE
    good = table.read_text()
    table.write_text("<html>Sorry</html>\n")
    with pytest.raises(DataError, match=f"{TABLE}.*the file was removed"):
        fetch(tmp_path / "fetched", url=server.url)
    table.write_text(good)
    assert fetch(tmp_path / "fetched", sites=("UM_1",), url=server.url).new == 1


def test_a_file_damaged_on_disk_is_fetched_again(server: Server, tmp_path: Path) -> None:
    """A file cut since the last run is found, reported and replaced."""
    data = tmp_path / "fetched"
    fetch(data, sites=("UM_1",), url=server.url)
    path = data / SCANS / "UM_1_0000004_rois_ho.1D"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    done = fetch(data, sites=("UM_1",), url=server.url)
    assert (done.new, done.repaired) == (1, ("UM_1_0000004",))
    assert path.read_bytes() == whole


def test_sites_are_those_of_the_table(server: Server, tmp_path: Path) -> None:
    """An unknown site, and a protocol whose samples are absent, are wrong calls."""
    with pytest.raises(ConfigError, match="site 'MIT' is unknown; known: NYU, UM_1"):
        fetch(tmp_path / "fetched", sites=("MIT",), url=server.url)
    with pytest.raises(ConfigError, match="needs the samples UCLA_1, USM"):
        fetch(tmp_path / "fetched", protocol="fedbn", url=server.url)


def test_no_server_is_one_error(tmp_path: Path) -> None:
    """A refused connection names the table."""
    with pytest.raises(DataError, match=f"{TABLE}: the transfer failed"):
        fetch(tmp_path / "fetched", url="http://127.0.0.1:9")


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "http://h:x", "ftp://host/a", "file:///tmp", "http://a b"])
def test_a_wrong_address_is_a_wrong_call(tmp_path: Path, url: str) -> None:
    """It is refused before anything is asked for or written."""
    with pytest.raises(ConfigError, match=f"url='{url}' is no address of a server"):
        fetch(tmp_path / "fetched", url=url)
    assert not (tmp_path / "fetched").exists()


def test_a_wrong_choice_is_found_before_the_network(server: Server, tmp_path: Path) -> None:
    """A site the protocol has not, a site twice, and an unknown protocol ask the server for nothing."""
    for sites, protocol, message in (
        (("MIT",), "fedbn", "site 'MIT' is unknown; protocol fedbn has NYU, UCLA, UM, USM"),
        (("NYU", "NYU"), None, "site NYU is named 2 times"),
        ((), "x", "protocol 'x' is unknown"),
    ):
        with pytest.raises(ConfigError, match=message):
            fetch(tmp_path / "fetched", sites=sites, protocol=protocol, url=server.url)
    assert server.asked == []


def test_an_error_of_the_transfer_is_one_line(server: Server, tmp_path: Path) -> None:
    """Whatever the reason says, and however many lines it has."""
    (server.source / "ABIDE_pcp" / TABLE).write_bytes(b"\xff\xfe\n\x00" * 50)
    with pytest.raises(DataError, match="Phenotypic") as error:
        fetch(tmp_path / "fetched", url=server.url)
    assert "\n" not in str(error.value)
