"""The architectures of texts that GenAI's builder knows, as it is pinned in envs/genai.

Written by docs/architectures.py from what the builder compares config.json with; a test compares them.
"""

NAMES = """
Ernie4_5ForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM GemmaForCausalLM GptOssForCausalLM
GraniteForCausalLM GraniteMoeHybridForCausalLM HunYuanDenseV1ForCausalLM InternLM2ForCausalLM
Lfm2ForCausalLM Lfm2MoeForCausalLM LlamaForCausalLM MistralForCausalLM NemotronForCausalLM
OlmoForCausalLM Phi3ForCausalLM Phi3SmallForCausalLM Phi3VForCausalLM Phi4MMForCausalLM
PhiForCausalLM PhiMoEForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM SmolLM3ForCausalLM
VideoChatFlashQwenForCausalLM
"""
ARCHITECTURES = frozenset(NAMES.split())
