"""The site file: what a cluster's own rules ask for, outside git; one file per user or machine.

    account: my-project                  # of SLURM
    store: /shared/ingot/store           # in place of INGOT_STORE, where that is unset
    envs: /shared/ingot/envs             # and of INGOT_ENVS: toolchains, built once for all
    partitions: {cpu: short, bigmem: fat, gpu: a100, net: transfer}
    constraints: {gpu: a100-80}          # sbatch -C, by the same roles
    qos: {gpu: high}                     # sbatch --qos, by the same roles
    reservation: nightly                 # sbatch --reservation
    gpu_type: h100                       # of GRES, where a partition has several
    remote: oci://host/repository        # INGOT_REMOTE, the shared cache, and what of it counts
    remote_policy: read-only
    trusted_keys: /etc/ingot/ci.pub      # INGOT_TRUSTED_KEYS
    remote_trust: registry               # in place of keys

INGOT_SITE names it; without that it is ingot/site.yaml in the user's config folder.  Every key is optional.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from ingot.base import yaml_text
from ingot.base.refused import Refused

FILE = "INGOT_SITE"
ROLES = ("cpu", "bigmem", "gpu", "net")  # of partitions; net: downloads, on the head by default
ENVIRONMENT = {
    "store": "INGOT_STORE", "envs": "INGOT_ENVS", "remote": "INGOT_REMOTE",
    "remote_policy": "INGOT_REMOTE_POLICY", "trusted_keys": "INGOT_TRUSTED_KEYS",
    "remote_trust": "INGOT_REMOTE_TRUST", "reservation": "SBATCH_RESERVATION",
}  # fmt: skip
PATHS = ("store", "envs", "trusted_keys")
BY_ROLE = ("partitions", "constraints", "qos")
KEYS = {
    **dict.fromkeys(("account", *ENVIRONMENT, "gpu_type"), str),
    **dict.fromkeys(BY_ROLE, dict),
}


@dataclass(frozen=True)
class Site:
    """What the site file says; empty without one."""

    account: str = ""
    store: str = ""
    envs: str = ""
    remote: str = ""
    remote_policy: str = ""
    trusted_keys: str = ""
    remote_trust: str = ""
    reservation: str = ""
    gpu_type: str = ""
    partitions: dict[str, str] = field(default_factory=dict)
    constraints: dict[str, str] = field(default_factory=dict)
    qos: dict[str, str] = field(default_factory=dict)


def path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(os.environ.get(FILE) or Path(home, "ingot/site.yaml"))


def read() -> Site:
    """Refused: what is no site file, an unknown key or role, a path that is not absolute."""
    place = path()
    if not place.is_file():
        if os.environ.get(FILE):
            raise Refused(f"{place}: missing, expected the site file that {FILE} names; write it")
        return Site()
    found = yaml_text.only(place, "a site file")
    if not isinstance(found, dict):
        raise Refused(f"{place}: holds a {type(found).__name__}, expected keys")
    for key, value in found.items():
        if key not in KEYS or not isinstance(value, KEYS[key]):
            known = ", ".join(KEYS)
            raise Refused(
                f"{place}: {key}: {value!r}, expected one of {known}; see docs/cluster.md"
            )
        for role, name in value.items() if isinstance(value, dict) else ():
            if role not in ROLES or not isinstance(name, str):
                known = ", ".join(ROLES)
                raise Refused(
                    f"{place}: {key}.{role}: {name!r}, expected a name for one of {known}"
                )
        if key in PATHS and not Path(value).is_absolute():
            raise Refused(f"{place}: {key}: {value}, expected an absolute path")
    return Site(**found)


def apply() -> Site:
    """Read it, and set what the environment does not say already."""
    found = read()
    for key, name in ENVIRONMENT.items():
        if (value := getattr(found, key)) and not os.environ.get(name):
            os.environ[name] = value
    return found
