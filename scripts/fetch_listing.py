"""List a hub model's files with their sizes and hashes, at one commit.  Runs in envs/hub.

Without a revision in the catalogue, the commit of main is looked up once and recorded in the lock
file; from then on that commit is meant.
"""

import fcntl
import json
import re
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, TypeVar

from ingot.base.atomic import replacing
from ingot.base.fields import read_json
from ingot.base.options import step
from ingot.base.refused import Refused
from ingot.model.checkpoint.safetensors import PICKLE
from ingot.model.hub import session
from ingot.model.hub.client import SILENCE, Retry, gated_page, no_longer_than, unsigned
from ingot.model.hub.listing import MOST, check

T = TypeVar("T")
COMMIT = re.compile("[0-9a-f]{40}")


def fetch_listing(
    model: Annotated[str, "its name in the catalogue"],
    hub: Annotated[str, "organisation/name"],
    revisions: Annotated[Path, "the lock file"],
    listing: Annotated[Path, "the file to write"],
    revision: Annotated[str, "40 hex digits, or nothing"] = "",
    gated: Annotated[str, "asks for a token", ("True", "False")] = "False",
    backoff: Annotated[float, "seconds before the first retry"] = 1.0,
) -> None:
    from huggingface_hub import HfApi, constants, get_token

    if gated == "True" and not get_token() and not constants.is_offline_mode():
        raise Refused(f"{hub}: {gated_page('gated, and no token is set', hub)}")
    session.install()
    api, retry = HfApi(), Retry(hub, backoff)

    def answer(question: Callable[[], T]) -> T:
        try:
            with no_longer_than(SILENCE):
                return question()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Refused(
                f"{hub}: what came is no listing ({unsigned(error)}); is HF_ENDPOINT, "
                f"{constants.ENDPOINT}, a hub?"
            ) from None

    def ask(question: Callable[[], T]) -> T:
        return retry.run(lambda: answer(question))

    revision = revision or recorded(
        revisions, model, hub, lambda: ask(lambda: api.model_info(hub).sha)
    )

    if not COMMIT.fullmatch(revision):  # a branch or a tag, as in an address of the hub
        named = revision
        revision = ask(lambda: api.model_info(hub, revision=named).sha)

    def files() -> list:
        return list(islice(api.list_repo_tree(hub, recursive=True, revision=revision), MOST + 1))

    found = {file.path: described(file) for file in ask(files) if hasattr(file, "blob_id")}
    check(hub, found)
    if not any(name.endswith(".safetensors") for name in found):
        if any(name.endswith(".gguf") for name in found):
            raise Refused(
                f"{hub}: GGUF files, converted already; take the repository of safetensors that they were "
                "made from (base_model of its card)"
            )
        pickles = any(name.endswith((".bin", ".pt", ".pth")) for name in found)
        reason = PICKLE if pickles else "a checkpoint has some; is it another repository?"
        raise Refused(f"{hub}: no *.safetensors among its files; {reason}")
    with replacing(listing) as partial:
        content = {"hub": hub, "revision": revision, "files": found}
        partial.write_text(json.dumps(content, indent=1) + "\n")


def described(file) -> dict[str, str | int]:
    """Size and the hub's own hash: SHA-256 of large files, git's blob SHA-1 of small ones."""
    if file.lfs:
        return {"size": file.lfs.size, "sha256": file.lfs.sha256}
    return {"size": file.size, "git_sha1": file.blob_id}


def recorded(path: Path, model: str, hub: str, look_up: Callable[[], str]) -> str:
    """The revision that the lock file holds for `model`, looked up and written when it has none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.busy").open("w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        known = read_json(path) if path.exists() else {}
        if known.get(model, {}).get("hub") != hub:
            known[model] = {"hub": hub, "revision": look_up()}
            with replacing(path) as partial:
                partial.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
            text = f"{path}: {model} is {hub} at {known[model]['revision']} from now on"
            print(text, file=sys.stderr)
        return known[model]["revision"]


if __name__ == "__main__":
    step(fetch_listing)
