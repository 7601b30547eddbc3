"""Every family there is.  A new one: a file here, and a line below."""

from ingot.architecture.families.family import Family
from ingot.architecture.families.llama import LLAMA
from ingot.architecture.families.mistral import MISTRAL

FAMILIES: dict[str, Family] = {one.architecture: one for one in (LLAMA, MISTRAL)}
