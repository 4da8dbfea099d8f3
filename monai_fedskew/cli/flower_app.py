"""The app folder of a study on Flower: a configuration, two import lines, and a README with every command."""

import json
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.sampling import sample_size

__all__ = ["write_app"]

_PACKAGE = "fedskew_app"
_CONFIG = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "{version}"
description = "A federated study of monai-fedskew; the code is installed at every institution"
license = {{ file = "LICENSE" }}
requires-python = ">=3.11"
dependencies = ["flwr>=1.42.0,<2"]  # asked for by Flower; nothing is installed when a run starts

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedskew"
fab-format-version = 1
flwr-version-target = "1.42.0"

[tool.flwr.app.components]
serverapp = "fedskew_app.server_app:app"
clientapp = "fedskew_app.client_app:app"

[tool.flwr.app.config]
{values}
"""
_LICENSE = "This folder holds settings and two import lines; use it as you like (CC0 1.0).\n"
_INIT = '"""Written by `fedskew flower app`."""\n'
_MODULE = '''"""The code is installed at every institution; Flower reads this file for the name `app`."""

from monai_fedskew.engines.flower import {name}

app = {name}
'''
_README = """\
# Study {study}

`{method}`, {rounds} rounds. Written by `fedskew flower app`. There is no code in this folder: every institution has
installed `monai-fedskew[flower]`, and all must have the same version of it.

Set everywhere: `FLWR_TELEMETRY_ENABLED=0`, `FLWR_DISABLE_UPDATE_CHECK=1` (Flower reports its use and looks for updates
otherwise) and `FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1` (Flower looks for work once a second otherwise).

## Once: the server
A TLS certificate for the server's name, as any web server needs; and the SuperLink, which lets in registered SuperNodes
only. RUN folders are written to `$FEDSKEW_RUNS/{study}`, `~/fedskew/runs` if it is not set.

    export FEDSKEW_RUNS=/srv/fedskew/runs
    flower-superlink --host 0.0.0.0 --port 8000 --disable-runtime-dependency-installation \\
        --ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile server.key \\
        --enable-supernode-auth --database /srv/fedskew/superlink.db

The connection, in `~/.flwr/config.toml` of whoever starts runs:

    [superlink]
    default = "study"
    [superlink.study]
    address = "server.example.org:8000"
    root-certificates = "/path/ca.crt"

**Whoever can start a run on this SuperLink can run code at the hospitals**, because Flower sends the files of an app
there. Hospitals and those who start runs use the same port: let the hospitals' addresses and this machine reach it, and
switch on Flower's account authentication if others can.

## Once: each hospital
A key that never leaves the hospital, and a file that says where its bundle and data are:

    ssh-keygen -t ecdsa -b 384 -N "" -f node-key      # node-key.pub goes to the server's administrator
    fedskew site init --site NYU --bundle abide_connectome --data prepared/NYU --out /srv/fedskew/fedskew.json

The server's administrator registers the key under the site's name, by which the server knows the site from then on.

    flwr supernode register node-key.pub study --name NYU

The hospital starts its SuperNode, which connects out and listens on its own machine only:

    flower-supernode --superlink server.example.org:8000 --root-certificates ca.crt \\
        --auth-supernode-private-key node-key --node-config 'site="NYU" fedskew="/srv/fedskew/fedskew.json"'

## Run
    fedskew flower run . study                # follows the run; exits 1 and says why if it was not completed
    flwr run . study --stream                 # the same, but exits 0 whatever happened

It waits up to {wait} s for {sites} sites. A site that does not answer within {timeout} s is left out of the round.

## Go on
After the SuperLink, the server or the run has died, once the SuperLink is up again:

    fedskew flower run . study --resume       # or: flwr run . study --run-config "resume=true" --stream

The run goes on after the last committed round with nothing lost. SuperNodes connect again by themselves to a SuperLink
with the same `--database`. A SuperNode that died is left out until it is started again, a minute later at the earliest:
the SuperLink refuses it (code 2004) until the dead one's last heartbeat has run out. It then takes part in the next
round of the same run.

To try it on one machine without certificates: `--insecure` instead of the TLS and key options, `insecure = true`
instead of `root-certificates`. Then anyone may claim to be a site; never do so with patients' data.
"""


def write_app(out: Path, config: Mapping[str, Any], *, force: bool = False) -> None:
    """Write an app folder, whole or not at all.

    Args:
        out: the folder.
        config: the run configuration: study, method, sites, timeout, wait, resume and the settings.
        force: replace an app folder; nothing else is ever replaced.

    Raises:
        ConfigError: something is there, or so many sites can never be enough for a round.
    """
    sampled = sample_size(config["sites"], config["fraction"])
    if config["min_sites"] > sampled:
        raise ConfigError(
            f"--min-sites {config['min_sites']}, but a round of --sites {config['sites']} with --fraction "
            f"{config['fraction']} has {sampled}; wait for more sites, or ask for fewer a round"
        )
    if out.exists():
        if not force:
            raise ConfigError(f"{out} exists; choose another --out, or replace it with --force")
        if not (out / _PACKAGE / "client_app.py").is_file():
            raise ConfigError(f"{out} is not an app folder, so --force does not replace it; choose another --out")
    values = "\n".join(f"{name} = {json.dumps(value)}" for name, value in config.items())
    # Flower allows letters, digits and dashes in a name
    name = "fedskew-" + "".join(c if c.isalnum() else "-" for c in str(config["study"])).strip("-").lower()
    texts = {
        "pyproject.toml": _CONFIG.format(name=name, version=version("monai-fedskew"), values=values),
        "README.md": _README.format(**config),
        "LICENSE": _LICENSE,
        f"{_PACKAGE}/__init__.py": _INIT,
        f"{_PACKAGE}/client_app.py": _MODULE.format(name="client"),
        f"{_PACKAGE}/server_app.py": _MODULE.format(name="server"),
    }
    partial = out.absolute().with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / _PACKAGE).mkdir(parents=True)
    for file, text in texts.items():
        (partial / file).write_text(text, encoding="utf-8")
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)
