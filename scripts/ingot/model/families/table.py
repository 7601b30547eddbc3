"""Every family there is.  A new one: a file here, and a line below."""

from ingot.model.families.family import Family
from ingot.model.families.llama import LLAMA
from ingot.model.families.mistral import MISTRAL

FAMILIES: dict[str, Family] = {one.architecture: one for one in (LLAMA, MISTRAL)}
