"""Derive the fields of a RayService from KubeRay's own definition, and write definition.py.

    python docs/kuberay_fields.py ray.io_rayservices.yaml COMMIT

What is kept: names, types, which are required and have no default.  Equal objects are kept once.
"""

import hashlib
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "scripts/ingot/serving/kuberay/definition.py"
TEXT = '''\
"""What a RayService may hold: names, types, `*` after what is required.  By docs/kuberay_fields.py.

Source: ray-project/kuberay, ray-operator/config/crd/bases/ray.io_rayservices.yaml at
{commit} (Apache-2.0), version v1.
"""

import json

ROOT = "{root}"
TEXT = """
{table}
"""
OBJECTS: dict[str, dict] = json.loads(TEXT.replace("\\n", " "))
'''


def derived(definition: dict) -> tuple[str, dict[str, dict]]:
    """The name of the whole, and every object by its name."""
    versions = {one["name"]: one for one in definition["spec"]["versions"]}
    objects: dict[str, dict] = {}

    def form(schema: dict) -> Any:
        if schema.get("x-kubernetes-int-or-string"):
            return "int-or-string"
        kind = schema.get("type")
        if kind == "array":
            return [form(schema["items"])]
        if kind != "object":
            return "|".join(map(str, schema["enum"])) if "enum" in schema else kind or "any"
        if "properties" in schema:
            required = [
                n for n in schema.get("required", []) if "default" not in schema["properties"][n]
            ]
            fields = {
                name + "*" * (name in required): form(one)
                for name, one in sorted(schema["properties"].items())
            }
            text = json.dumps(fields, sort_keys=True)
            name = "#" + hashlib.sha256(text.encode()).hexdigest()[:6]
            objects[name] = fields
            return name
        each = schema.get("additionalProperties")
        return {"": form(each)} if isinstance(each, dict) else "any"

    return form(versions["v1"]["schema"]["openAPIV3Schema"]), objects


def main(path: str, commit: str) -> None:
    import yaml

    root, objects = derived(yaml.load(Path(path).read_text(), yaml.CSafeLoader))
    text = json.dumps(objects, sort_keys=True)
    lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
    TARGET.write_text(TEXT.format(commit=commit, root=root, table="\n".join(lines)))


if __name__ == "__main__":
    main(*sys.argv[1:])
