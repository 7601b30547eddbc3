"""Addresses and ports of this node: the one that routes to the head, and what is free."""

import fcntl
import socket
import struct

from place import Place, Refused, Site, asked

SIOCGIFADDR = 0x8915


def head_address(place: Place, site: Site) -> str:
    """The head's address, by SLURM's own record of the node."""
    if place.nodes == 1:
        return interface_address(site.get("interface", "lo"))
    shown = asked("scontrol", "show", "node", place.names[0], "--oneliner")
    words = dict(word.partition("=")[::2] for word in shown.split())
    name = words.get("NodeAddr") or place.names[0]
    try:
        found = socket.gethostbyname(name)
    except OSError as error:
        raise Refused(f"{place.names[0]}: no address of {name} on {place.name} ({error})") from None
    if found.startswith("127.") and not site.get("interface"):
        raise Refused(
            f"{place.names[0]}: its name means {found} on {place.name}, which no other node reaches; "
            f"set interface in {site.path}"
        )
    return found


def own_address(head: str, site: Site) -> str:
    """This node's address on the way to the head, or on the interface that the site names."""
    if name := site.get("interface"):
        return interface_address(name)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((head, 9))  # nothing is sent
        return probe.getsockname()[0]


def interface_address(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            raise Refused(
                f"interface {name}: not on this node; correct it in the site file"
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


def free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen()
        except OSError:
            return False
    return True


def all_free(address: str, first: int, count: int) -> bool:
    return all(free(address, first + offset) for offset in range(count))
