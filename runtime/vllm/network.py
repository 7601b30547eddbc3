"""Addresses and ports of this node: the one that routes to the head, and what is free."""

import errno
import fcntl
import socket
import struct

from place import Place, Refused, Site, asked

SIOCGIFADDR = 0x8915
ELSEWHERE = "192.0.2.1"  # of nobody (RFC 5737): to it leads the way out


def address_of(place: Place, rank: int) -> str:
    """A node's address, by SLURM's own record of it."""
    shown = asked("scontrol", "show", "node", place.names[rank], "--oneliner")
    words = dict(word.partition("=")[::2] for word in shown.split())
    name = words.get("NodeAddr") or place.names[rank]
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise Refused(
            f"{place.names[rank]}: no address of {name} on {place.name} ({error})"
        ) from None


def head_address(place: Place, site: Site) -> str:
    """Where a worker finds the head.  A name that means this machine is a fault of /etc/hosts."""
    found = address_of(place, 0)
    if found.startswith("127.") and not site.get("interface"):
        raise Refused(
            f"{place.names[0]}: its name means {found} on {place.name}, which no other node reaches; "
            "correct /etc/hosts or NodeAddr"
        )
    return found


def own_address(place: Place, site: Site) -> str:
    """This node's address on the way to the others, or on the interface that the site names."""
    if name := site.get("interface"):
        return interface_address(name)
    if place.local:
        return "127.0.0.1"
    other = 0 if place.rank else 1
    towards = address_of(place, other) if place.nodes > 1 else ELSEWHERE
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))  # nothing is sent
        except OSError as error:
            own = "127." if place.nodes > 1 else address_of(place, 0)
            if not own.startswith("127."):  # a node without a way out
                return own
            raise Refused(
                f"{place.name}: no way to {towards} ({error}); set interface in {site.path}"
            ) from None
        return probe.getsockname()[0]


def interface_address(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            raise Refused(
                f"interface {name}: not on this node; name another in the site file"
            ) from None
    return socket.inet_ntoa(packed[20:24])


def interface_of(address: str) -> str:
    """The interface that has `address`: what NCCL and Gloo are told."""
    for _, name in socket.if_nameindex():
        try:
            if interface_address(name) == address:
                return name
        except Refused:
            continue
    raise Refused(f"{address}: on no interface of this node; set interface in the site file")


def listen(address: str, port: int) -> None:
    """Try to: raises OSError."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
        probe.listen()


def free(address: str, port: int) -> bool:
    try:
        listen(address, port)
    except OSError:
        return False
    return True


def stop_on_no_port(port: int) -> None:
    if not 0 < port < 1 << 16:
        raise Refused(f"--port: {port}, expected a number from 1 to 65535; name another")


def stop_on_unusable(address: str, port: int, remedy: str, where: str = "") -> None:
    """Refuse a port that no server of this user could listen on."""
    try:
        listen(address, port)
        return
    except PermissionError:
        why, expected = "not allowed to this user", "a port above 1023"
    except OSError as error:
        why, expected = error.strerror, "an address of this machine"
        if error.errno == errno.EADDRINUSE:
            why, expected = "taken", "a free port"
    raise Refused(f"{address}:{port}: {why}{where}, expected {expected}; {remedy}")


def all_free(address: str, first: int, count: int) -> bool:
    return all(free(address, first + offset) for offset in range(count))
