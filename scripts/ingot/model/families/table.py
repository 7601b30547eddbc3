"""Every family there is.  A new one: a file here, and a line below."""

from ingot.model.families.deepseek import V2, V3
from ingot.model.families.family import Family
from ingot.model.families.gemma2 import GEMMA2
from ingot.model.families.gemma3 import GEMMA3, GEMMA3_SEEING
from ingot.model.families.gpt_oss import GPT_OSS
from ingot.model.families.granite import GRANITE
from ingot.model.families.llama import LLAMA
from ingot.model.families.mistral import MISTRAL
from ingot.model.families.mixtral import MIXTRAL
from ingot.model.families.olmo2 import OLMO2
from ingot.model.families.phi3 import PHI3
from ingot.model.families.qwen2 import QWEN2
from ingot.model.families.qwen3 import QWEN3
from ingot.model.families.qwen3_moe import QWEN3_MOE
from ingot.model.families.seed_oss import SEED_OSS
from ingot.model.families.smollm3 import SMOLLM3

_ALL = (
    LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA2, GEMMA3, GEMMA3_SEEING, SMOLLM3, GRANITE,
    OLMO2, PHI3, SEED_OSS, GPT_OSS, V2, V3,
)  # fmt: skip
FAMILIES: dict[str, Family] = {one.architecture: one for one in _ALL}
