"""What can be asked for.

    snakemake artifacts/demo_tp1.shortfin                      build it
    snakemake -n artifacts/llama8b-instruct_tp1.vmfb           show what would run
    snakemake --configfile mine.yaml -- artifacts/mine_tp1.vmfb   a model of your own

    artifacts/M.fp8.safetensors         a quantised checkpoint for vLLM; fp8_block, w8a8, w4a16, mxfp4, nvfp4
    artifacts/M.mlx, M.4bit.mlx, M.8bit.mlx   a checkpoint for MLX, on Apple's machines
    artifacts/M.gguf, M.q4_k_m.gguf     GGUF at the model's dtype, or at the type named
    artifacts/M.quants                  GGUF of several types, from one read of the checkpoint
    artifacts/M.split, M.q4_k_m.split   a GGUF file as a set of files that hubs take
    artifacts/M.imatrix                 an importance matrix, by which quantised files are made
    artifacts/M.mmproj.gguf             the part of a model for images, beside its GGUF
    artifacts/M.lora.gguf               an adapter, which llama.cpp applies to its base's GGUF
    artifacts/M.irpa, M.bf16.irpa       unsharded IRPA
    artifacts/M_tpN.irpa                a root, and an archive for each of N ranks beside it
    artifacts/M_tpN.mlir, .config.json  the exported program, and the server's config
    artifacts/M_tpN.vmfb, .gfx942.vmfb  compiled for the model's hardware, or for the one named
    artifacts/M_tpN.shortfin            all that the shortfin server needs, and its launch script
    artifacts/M_tpN.trtllm-ckpt         a TensorRT-LLM checkpoint; M_tpN.fp8.trtllm-ckpt quantised
    artifacts/M_tpN.trtllm, .sm90.trtllm   its engine, built on a GPU
    artifacts/M_tpN.triton              a Triton model repository, and its launch script
    artifacts/M.onnx, M.fp16.onnx, M.int8.onnx   a decoder in ONNX, for ONNX Runtime and its kin
    artifacts/M.openvino, M.int8.openvino        its OpenVINO IR, for openvino_genai (M.int4.openvino)
    artifacts/M.torchpipe               the same decoder cut at attention, for torchpipe
    artifacts/M.rtx                     a TensorRT for RTX engine of it (proprietary compiler, optional)
    artifacts/M_tpN.vllm-slurm          what SLURM serves by vLLM: weights, plan, launch files
    artifacts/M_tpN.rayserve            what Ray Serve serves: vLLM, and int8 on CPUs
    artifacts/M_tpN.kuberay             the same model as manifests for KubeRay
    artifacts/<any>.verified.json       what it was compared with, and the numbers
    artifacts/<any>.published.json      where it is in the registry that `publish` names, and its digest

M is an entry of models.yaml.
"""

import os.path
import re


configfile: f"{workflow.current_basedir}/models.yaml"


# by `ingot add`; Snakemake refuses a file of comments alone
if os.path.isfile("models.local.yaml") and re.search(
    r"^ *[^#\s-]", open("models.local.yaml").read(), re.M
):

    configfile: "models.local.yaml"


include: "rules/common.smk"
include: "rules/toolchain.smk"
include: "rules/fetch.smk"
include: "rules/reference.smk"
include: "rules/safetensors.smk"
include: "rules/mlx.smk"
include: "rules/gguf.smk"
include: "rules/irpa.smk"
include: "rules/iree.smk"
include: "rules/shortfin.smk"
include: "rules/trtllm.smk"
include: "rules/triton.smk"
include: "rules/onnx.smk"
include: "rules/openvino.smk"
include: "rules/rtx.smk"
include: "rules/serve.smk"
include: "rules/publish.smk"


rule all:
    default_target: True
    input:
        "artifacts/demo_tp1.shortfin",
        "artifacts/demo_tp1.shortfin.verified.json",
