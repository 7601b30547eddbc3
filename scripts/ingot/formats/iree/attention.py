"""How a program for CPUs computes the attention of a prompt: tiles that iree-compile is told, by head size.

Of its own it takes eight values of a head at a time, and computes the scores again for each eight: a prompt
of 400 tokens takes 8 times the processor time with heads of 64, and 15 times with heads of 128.
"""

CPU = ("iree-hal-local-target-device-backends=llvm-cpu", "iree-hal-target-backends=llvm-cpu")
FLAG = "iree-codegen-transform-dialect-library"
# values of a head; for other heads, and other numbers than float32, the compiler takes its own tiles
SIZES = (32, 48, 64, 80, 96, 112, 128, 160, 192, 256)
# dimensions of a prompt's queries and keys: heads, tokens, values, and before them a batch; of queries also
# those that share a head.  In a decode, which is left as it is, the keys have one more.
RANKS = ((3, 3), (4, 3), (4, 4), (5, 4))
# values of a tile: of twice as many the compiler says for x86-64-v3 that its vectors are too large
LARGEST = 2048
ROWS = 8  # tokens that one thread computes at once

ANNOTATE = """\
  transform.named_sequence @annotate(%op: !transform.any_op {transform.readonly},
                                     %tiles: !transform.any_param {transform.readonly}) {
    transform.annotate %op "compilation_info" = %tiles : !transform.any_op, !transform.any_param
    transform.yield
  }
"""
MATCH = """\
  transform.named_sequence @NAME(%op: !transform.any_op {transform.readonly})
      -> (!transform.any_op, !transform.any_param) {
    transform.match.operation_name %op ["iree_linalg_ext.attention"] : !transform.any_op
    %queries = transform.get_operand %op[0] : (!transform.any_op) -> !transform.any_value
    transform.iree.match.cast_compatible_type %queries = tensor<EACHxSIZExf32> : !transform.any_value
    %keys = transform.get_operand %op[1] : (!transform.any_op) -> !transform.any_value
    transform.iree.match.cast_compatible_type %keys = tensor<ALLxSIZExf32> : !transform.any_value
    %tiles = transform.param.constant #iree_codegen.compilation_info<
      lowering_config = #iree_cpu.lowering_config<
        distribution = [OUTER, ROWS, 0, 0, 0],
        vector_common_parallel = [OUTER, TOKENS, SIZE, 0, 0],
        vector_reduction = [NONE, 0, 0, 0, KEYS]>,
      translation_info = #iree_codegen.translation_info<pipeline = CPULinalgExtTileAndVectorize>>
      -> !transform.any_param
    transform.yield %op, %tiles : !transform.any_op, !transform.any_param
  }
"""
CONFIGURE = """\
  transform.named_sequence @configure(%variant: !transform.any_op {transform.consumed})
      -> !transform.any_op {
    %found = transform.foreach_match in %variant
      EACH : (!transform.any_op) -> !transform.any_op
    transform.yield %found : !transform.any_op
  }
"""
ENTRY = "@configure"


def tiles(size: int) -> tuple[int, int]:
    """How many tokens, and how many keys, are computed at once; of a head of `size` all values."""
    keys = 16 if size * 16 <= LARGEST else 8
    return LARGEST // (keys * size), keys


def library() -> str:
    """MLIR of the transform dialect, for FLAG."""
    matches, names = [], []
    for size in SIZES:
        tokens, keys = tiles(size)
        for queries, held in RANKS:
            names.append(f"@heads_{size}_{queries}_{held}")
            text, outer = MATCH, queries - 2
            for word, said in (
                ("@NAME", names[-1]),
                ("EACH", "x".join("?" * (queries - 1))),
                ("ALL", "x".join("?" * (held - 1))),
                ("OUTER", ", ".join("1" * outer)),
                ("NONE", ", ".join("0" * outer)),
                ("ROWS", str(ROWS)),
                ("TOKENS", str(tokens)),
                ("SIZE", str(size)),
                ("KEYS", str(keys)),
            ):
                text = text.replace(word, said)
            matches.append(text)
    each = ",\n      ".join(f"{name} -> @annotate" for name in names)
    whole = [ANNOTATE, *matches, CONFIGURE.replace("EACH", each)]
    return "module attributes {transform.with_named_sequence} {\n" + "".join(whole) + "}\n"
