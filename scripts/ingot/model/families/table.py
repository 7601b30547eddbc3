"""Every family there is.  A new one: a file here, and a line below."""

from ingot.model.families.family import Family
from ingot.model.families.llama import LLAMA
from ingot.model.families.mistral import MISTRAL
from ingot.model.families.qwen2 import QWEN2
from ingot.model.families.qwen3 import QWEN3

FAMILIES: dict[str, Family] = {one.architecture: one for one in (LLAMA, MISTRAL, QWEN2, QWEN3)}
