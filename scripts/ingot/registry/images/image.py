"""An image of a toolchain, without a daemon: its layers upon those of a base; the same bytes each time."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base.digest import canonical
from ingot.registry.images import packages
from ingot.registry.images.base import TAR, Base
from ingot.registry.images.layers import write
from ingot.registry.transfer import Content, of_bytes

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    manifest: dict[str, Any]
    contents: list[Content]  # layers and config

    @property
    def digest(self) -> str:
        return of_bytes(canonical(self.manifest)).digest


def build(base: Base, toolchain: Path, folder: Path) -> Image:
    """`folder` takes the layers."""
    groups = [*packages.grouped(toolchain), packages.environment(toolchain, base.python)]
    own = [write(group, folder) for group in groups if group]
    layers = [one for one, _ in base.layers]
    layers += [{"mediaType": TAR, "digest": one.digest, "size": one.size} for one in own]
    config = of_bytes(
        canonical(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {**base.config, "Env": variables(base.config.get("Env") or [])},
                "rootfs": {
                    "type": "layers",
                    "diff_ids": [*base.diff_ids, *(one.digest for one in own)],
                },
            }
        )
    )
    described = {"mediaType": CONFIG, "digest": config.digest, "size": config.size}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": layers}
    return Image(manifest, [*(content for _, content in base.layers), *own, config])


def variables(known: list[str]) -> list[str]:
    """The base's, and its PATH with the environment's commands first."""
    path = next((one.partition("=")[2] for one in known if one.startswith("PATH=")), PATH)
    others = [one for one in known if not one.startswith("PATH=")]
    return [f"PATH=/{packages.PLACE}/bin:{path}", *others]


def write_layout(image: Image, folder: Path, ours: Path) -> None:
    """An OCI image layout, as skopeo, podman and containerd read it.

    Files in `ours` are linked: others may be written again.
    """
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)
    manifest = of_bytes(canonical(image.manifest))
    for content in [*image.contents, manifest]:
        target = blobs / content.digest.removeprefix("sha256:")
        if target.exists():
            continue
        if isinstance(content.source, bytes):
            target.write_bytes(content.source)
            continue
        if content.source.parent == ours:
            os.link(content.source, target)
        else:
            shutil.copyfile(content.source, target)
    described = {"mediaType": MANIFEST, "digest": manifest.digest, "size": manifest.size}
    index = {"schemaVersion": 2, "manifests": [described]}
    (folder / "index.json").write_text(json.dumps(index) + "\n")
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}\n')
