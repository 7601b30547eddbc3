"""An artifact's two faces in a registry, around one set of bytes.

CNCF ModelPack (modelpack/model-spec): each file a raw layer, whose digest is the file's own.  And an
image of tar layers below /models/, for what mounts or unpacks images.
"""

import json
from typing import Any

from ingot.base.digest import canonical

# What a manifest of our index is.  Not by artifactType, which skopeo 1.9 drops from an index: its digest
# would be another.
ROLE, MODEL, ACTION = "ingot.role", "model", "action"
IMAGES = {"image": "amd64", "image-arm64": "arm64"}  # roles, and the platform of each
VERIFICATION, SBOM, PROVENANCE, FILES = "verification", "sbom", "provenance", "files"
TITLE = "org.opencontainers.image.title"
ARTIFACT = "application/vnd.cncf.model.manifest.v1+json"
MODEL_CONFIG = "application/vnd.cncf.model.config.v1+json"
LAYER = "application/vnd.cncf.model.{kind}.v1.raw"
FILEPATH = "org.cncf.model.filepath"
FILE_METADATA = "org.cncf.model.file.metadata+json"
PART_OF, WHOLE = "ingot.part.of", "ingot.part.whole"  # of a part's layer: the file, and its digest
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"  # a config's media type: nothing that runs
IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"
TAR = "application/vnd.oci.image.layer.v1.tar"
WEIGHTS = (
    ".gguf", ".irpa", ".safetensors", ".vmfb", ".engine", ".onnx", ".data", ".scales", ".bin", ".pt",
)  # fmt: skip
DOCUMENTS = ("LICENSE", "README.md", "README")


def kind(name: str) -> str:
    """What ModelPack calls a file of this name."""
    base = name.rpartition("/")[2]
    if base in DOCUMENTS:
        return "doc"
    if base.endswith(WEIGHTS):
        return "weight"
    return "code" if base.endswith((".py", ".sh")) or base == "serve" else "weight.config"


def described(media_type: str, digest: str, size: int, **annotations: str) -> dict[str, Any]:
    found: dict[str, Any] = {"mediaType": media_type, "digest": digest, "size": size}
    return found | ({"annotations": annotations} if annotations else {})


def layer(name: str, digest: str, size: int, executable: bool = False) -> dict[str, Any]:
    """A file's raw layer."""
    notes = {FILEPATH: name}
    if executable:
        notes[FILE_METADATA] = json.dumps({"name": name, "mode": 0o755, "uid": 0, "gid": 0})
    return described(LAYER.format(kind=kind(name)), digest, size, **notes)


def named(layers: list[dict]) -> dict[str, str]:
    """The digest of each file that layers hold, by its path; of one in parts, the whole file's."""
    found = {}
    for one in layers:
        notes = one.get("annotations", {})
        path = notes.get(PART_OF, notes.get(FILEPATH, ""))
        found[path] = notes.get(WHOLE, one["digest"])
    return found


def model_config(name: str, family: str, form: str, layers: list[dict]) -> bytes:
    """`form` is the artifact's format, such as gguf or vmfb."""
    return canonical(
        {
            "descriptor": {"name": name, "family": family},
            "config": {"format": form},
            "modelfs": {"type": "layers", "diffIds": [one["digest"] for one in layers]},
        }
    )


def image_config(layers: list[dict], architecture: str) -> bytes:
    return canonical(
        {
            "architecture": architecture,
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [one["digest"] for one in layers]},
            "config": {},
        }
    )


def manifest(config: dict, layers: list[dict], **more: Any) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers, **more}


def index(manifests: list[dict], **annotations: str) -> dict[str, Any]:
    return {
        "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": annotations,
    }  # fmt: skip
