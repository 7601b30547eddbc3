"""How a job's nodes meet, with strangers at the door and on the line."""

import importlib.util
import json
import subprocess
import sys

import pytest

from conftest import ROOT

HEAD = """
import json, os, socket, sys, threading, time
from pathlib import Path
import meeting
from place import FIRST, Place, Refused, Site

site = Site(Path("serve.conf"), {"meet_seconds": "30"})
def place(rank):
    return Place(str(os.getpid()), rank, ("n1", "n2"))  # whose ports no other test of now has
table = meeting.Head(place(0), site, "key")
meets = threading.Thread(target=table.gather, args=("127.0.0.1",), daemon=True)
meets.start()
port = meeting.port_blocks(place(0).number)[0]
def stranger(words=b""):
    end = time.monotonic() + 10
    while True:
        try:
            found = socket.create_connection(("127.0.0.1", port), timeout=2)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < end
    found.sendall(words)
    return found
"""
CAME = """
worker = meeting.Worker(place(1), site, "key", "127.0.0.1")
meets.join(20)
assert not meets.is_alive() and list(table.lines) == [1]
worker.line.say(free=True)
print(json.dumps(table.lines[1].hear(5)))
with socket.socket() as again:  # nobody listens at the door any more
    again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    again.bind(("127.0.0.1", port))
    again.listen()
"""
PAIR = """
import json, socket, sys, threading
import meeting
door = socket.create_server(("127.0.0.1", 0))
far = socket.create_connection(door.getsockname())
near = door.accept()[0]
head, worker = meeting.Line(near), meeting.Line(far)
proves = threading.Thread(target=meeting.known, args=(worker, "key", "worker"))
proves.start()
assert meeting.known(head, "key", "head")
proves.join(10)
sent = []
class Between:
    def __init__(self, real): self.real = real
    def settimeout(self, seconds): self.real.settimeout(seconds)
    def sendall(self, data): sent.append(data)
worker.connection = Between(far)
worker.say(free=True)
worker.say(free=True)
line = sent[0]
"""


def run(*code):
    done = subprocess.run(
        [sys.executable, "-c", "".join(code)], capture_output=True, text=True, timeout=60, check=False,
        env={"PYTHONPATH": f"{ROOT}/runtime/vllm"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


STRANGERS = {
    "who says nothing, three hundred times": "left = [stranger() for _ in range(300)]\n",
    "with a deep line": "stranger(b'[' * 200_000 + b'\\n')\n",
    "with a long line": "stranger(b'x' * 2_000_000)\n",
    "with a list": "stranger(b'[1]\\n')\n",
    "who has gone": "stranger().close()\n",
    "who says that he has proved it": 'stranger(b\'{"nonce": "1"}\\n{"proof": "1"}\\n{"rank": 1}\\n\')\n',
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=list(STRANGERS))
def test_a_stranger_keeps_no_node_from_the_meeting(stranger):
    words = f"try:\n    {stranger}except OSError:\n    pass\n"
    assert json.loads(run(HEAD, words, CAME)) == {"free": True}


LINES = {
    "as it was sent": ("line", True),
    "one letter changed": ("line.replace(b'true', b'null')", False),
    "without its mark": ("line[64:]", False),
    "the second before the first": ("sent[1]", False),
    "one's own": ("head_said()", False),
}


@pytest.mark.parametrize("change, taken", LINES.values(), ids=list(LINES))
def test_only_the_other_nodes_next_line_is_believed(change, taken):
    code = (
        "def head_said():\n"
        "    head.connection = Between(near)\n    head.say(free=True)\n    head.connection = near\n"
        "    return sent.pop()\n"
        f"far.sendall({change})\n"
        "try:\n    print(head.hear(5))\nexcept ConnectionError as error:\n    print(error)\n"
    )
    said = run(PAIR, code)
    assert said == ("{'free': True}\n" if taken else "a line of somebody else\n")


def test_the_same_line_twice_is_believed_once():
    code = "far.sendall(line + line)\nhead.hear(5)\n"
    code += "try:\n    head.hear(5)\nexcept ConnectionError as error:\n    print(error)\n"
    assert run(PAIR, code) == "a line of somebody else\n"


@pytest.mark.parametrize(
    "port, right", [("9", 0), ("8000", 1), ("60639", 1), ("65535", 1), ("65536", 0)]
)
def test_a_site_file_takes_any_port_and_says_what_is_wrong_with_a_value(
    port, right, tmp_path, monkeypatch
):
    """A port above 59999 was taken for an unknown key."""
    spec = importlib.util.spec_from_file_location("job_place", ROOT / "runtime/vllm/place.py")
    place = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "job_place", place)  # which its dataclasses ask for
    spec.loader.exec_module(place)
    (tmp_path / "serve.conf").write_text(f"port = {port}\n")
    monkeypatch.setenv("INGOT_SERVE_SITE", str(tmp_path / "serve.conf"))
    if right:
        assert place.read_site().number("port", 0) == int(port)
    else:
        said = f"'port = {port}', expected a number from 10 to 65535"
        with pytest.raises(place.Refused, match=said):
            place.read_site()
    (tmp_path / "serve.conf").write_text("prot = 1\n")
    with pytest.raises(place.Refused, match="expected KEY = VALUE with one of python, account"):
        place.read_site()


TOLD = """
import os, signal, sys
import node
node.read_bundle = dict
node.Node.run = lambda self: os.kill(os.getpid(), signal.{signal})
sys.argv[1:] = {words}
print(node.main())
"""


@pytest.mark.parametrize(
    "name, said, status",
    [("SIGINT", "Ctrl-C", 130), ("SIGTERM", "SIGTERM", 143), ("SIGHUP", "SIGHUP", 129)],
)
def test_a_server_says_by_what_it_was_stopped(name, said, status):
    assert run(TOLD.format(signal=name, words=[])) == f"stopped by {said}\n{status}\n"


@pytest.mark.parametrize("port", [99999, 65536, -1])
def test_a_port_that_there_cannot_be_is_refused_before_anything_is_read(port):
    said = f"error: --port: {port}, expected a number from 1 to 65535; name another\n1\n"
    assert run(TOLD.format(signal="SIGTERM", words=[f"--port={port}"])) == said


UNUSABLE = {
    "taken": ("other.bind(('127.0.0.1', 0))\nother.listen()\nport = other.getsockname()[1]\n",
              "taken on n1, expected a free port"),
    "for root alone": ("def listen(*_): raise PermissionError(13, 'no')\nnetwork.listen = listen\n",
                       "not allowed to this user on n1, expected a port above 1023"),
    "of another machine": ("address = '192.0.2.1'\n",
                           "Cannot assign requested address on n1, expected an address of this"),
}  # fmt: skip


@pytest.mark.parametrize("how, said", UNUSABLE.values(), ids=list(UNUSABLE))
def test_a_port_that_cannot_be_used_says_why(how, said):
    code = "import socket, network\nother = socket.socket()\naddress, port = '127.0.0.1', 80\n"
    tried = "    network.stop_on_unusable(address, port, 'leave port out', ' on n1')\n"
    code += f"{how}try:\n{tried}except network.Refused as why:\n    print(why)\n"
    assert said in run(code)
