"""Upload a folder to a repository of the Hugging Face hub, in one commit.  Runs in envs/hub.

HF_TOKEN is the token, HF_ENDPOINT the hub.  A card that somebody else wrote stays: ours then comes as
MODEL_CARD.md beside it.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

from ingot.base.entry import run
from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.model.hub import session
from ingot.model.hub.client import BrokenTransferError, unsigned

MARK = "<!-- written by ingot -->"  # of release/card.py
CARD, OTHER = "README.md", "MODEL_CARD.md"
RECORD = ".verified.json"
MOST, RECORDS = 1 << 20, 200  # bytes of a record; records that are read
TITLE = re.compile(r"[\w.-]{1,200}")
OF_ROOT = tuple(f".{name}{RECORD}" for name in ("safetensors", "mlx"))  # as Format.repository says


def upload(folder: Path, repository: str, branch: str, message: str, alone: str = "") -> str:
    """The commit's address.  `alone` is the title of what takes the root of the repository, if it does."""
    os.environ["HF_HUB_DISABLE_XET"] = "1"
    from httpx2 import HTTPError
    from huggingface_hub import HfApi, errors

    session.install()
    token = os.environ.get("HF_TOKEN")
    if not token:
        raise Refused(f"{repository}: HF_TOKEN is unset, expected a token that may write; set it")
    api = HfApi(token=token)
    try:
        if not api.repo_exists(repository):
            api.create_repo(repository, private=True)
            print(f"{repository}: new, private; make it public on the hub", file=sys.stderr)
        if branch != "main":
            api.create_branch(repository, branch=branch, exist_ok=True)
        if alone and (other := _at_root(api, repository, branch) - {alone}):
            raise Refused(
                f"{repository}: {min(other)} is at its root, where {alone} would be mixed with it; "
                "expected a repository, or a branch, of its own"
            )
        if _somebody_elses(api, repository, branch, CARD):
            if _somebody_elses(api, repository, branch, OTHER):
                raise Refused(
                    f"{repository}: {CARD} and {OTHER} are somebody's own, expected one that may be "
                    "written; rename one"
                )
            (folder / CARD).rename(folder / OTHER)
            print(f"{repository}/{CARD}: somebody's own, stays; ours is {OTHER}", file=sys.stderr)
        done = api.upload_folder(
            repo_id=repository, folder_path=folder, revision=branch, commit_message=message
        )
    except (errors.HfHubHTTPError, BrokenTransferError, HTTPError, OSError, ValueError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = unsigned(error)[:200] or type(error).__name__
        reason = f"the hub answers {status}" if status else reason
        raise Refused(
            f"{repository}: {reason}, expected an upload; check the name and HF_TOKEN"
        ) from None
    return f"{repository}@{done.oid}"


def records(repository: str, branch: str) -> dict[str, dict]:
    """By title, of each artifact with a record there: its bytes, and what the record says.

    Empty where there is no such repository.  Nobody has checked them: who writes there can write a record.
    """
    os.environ["HF_HUB_DISABLE_XET"] = "1"
    from httpx2 import HTTPError
    from huggingface_hub import HfApi, errors

    session.install()
    api = HfApi(token=os.environ.get("HF_TOKEN"))
    try:
        files = {
            one.path: one.size
            for one in api.list_repo_tree(repository, revision=branch, recursive=True)
            if hasattr(one, "size")
        }
        found = {}
        for name, size in files.items():
            title = name.removesuffix(RECORD)
            if title == name or not TITLE.fullmatch(title) or size > MOST:
                continue
            held = sum(
                n for path, n in files.items() if path == title or path.startswith(f"{title}/")
            )
            if len(found) < RECORDS:
                path = Path(api.hf_hub_download(repository, name, revision=branch))
                found[title] = {"bytes": held, "record": _read(path)}
    except (errors.HfHubHTTPError, BrokenTransferError, HTTPError, OSError, ValueError):
        return {}  # the upload says what is wrong with the place
    return found


def _read(record: Path) -> dict:
    """Empty where it is none."""
    try:
        return read_json(record)
    except Refused:
        return {}


def _at_root(api, repository: str, branch: str) -> set[str]:
    """The titles of the artifacts that are a repository by themselves, by their records."""
    names = api.list_repo_files(repository, revision=branch)
    return {name.removesuffix(RECORD) for name in names if name.endswith(OF_ROOT)}


def _somebody_elses(api, repository: str, branch: str, name: str) -> bool:
    """Is there a card of that name without our mark?"""
    from huggingface_hub import errors

    try:
        found = api.hf_hub_download(repository, name, revision=branch)
    except (errors.RemoteEntryNotFoundError, errors.RevisionNotFoundError):
        return False
    return MARK not in Path(found).read_text(errors="replace")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="what to upload; without it, say what is there")
    parser.add_argument("--repository", required=True, help="organisation/name")
    parser.add_argument("--branch", default="main", help="of the repository")
    parser.add_argument("--message", default="", help="of the commit")
    parser.add_argument("--alone", default="", help="the title of what takes its root")
    options = parser.parse_args(argv)
    if options.folder:
        print(upload(**vars(options)))
    else:
        print(json.dumps(records(options.repository, options.branch)))


if __name__ == "__main__":
    run(main)
