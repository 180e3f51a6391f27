"""Which model families can be read as a decoder with keys and values by head, which cannot, and why.

A family is what ``model_type`` says, or the class in ``architectures`` without its ending. Names are compared
without case and punctuation: gpt_neox is GPTNeoXForCausalLM.
"""

from __future__ import annotations

import re

_ENDINGS = re.compile(r"(ForCausalLM(Lighting)?|LMHeadModel|LMHead|ForConditionalGeneration|Model)$")


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _families(names: str) -> frozenset[str]:
    return frozenset(map(_folded, names.split()))


_DECODERS = _families(
    """llama code_llama mistral mistral3 ministral ministral3 mixtral pixtral yi aquila baichuan internlm internlm2
    internlm3 orion xverse minicpm chatglm glm glm4 glm4_moe qwen qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe
    qwen3_vl qwen3_vl_moe gemma gemma2 gemma3 phi phi3 phimoe phi_moe gpt2 gpt_neo gpt_neox gptj gpt_bigcode codegen
    starcoder2 opt falcon RW RefinedWeb RefinedWebModel bloom mpt persimmon stablelm stablelm_epoch cohere cohere2
    olmo olmo2 olmo3 olmoe granite granitemoe nemotron exaone exaone4 smollm3 arcee apertus ernie4_5 ernie4_5_moe
    hunyuan_v1_dense hunyuan_v1_moe seed_oss gpt_oss deepseek dots1 helium bitnet llava llava_next mimo"""
)

_REASONS: dict[str, str] = {
    "an encoder-decoder, and only decoder-only models are": """t5 mt5 umt5 byt5 longt5 switch_transformers t5gemma
    t5gemma2 bart mbart plbart mvp pegasus pegasus_x bigbird_pegasus led marian m2m_100 nllb nllb_moe blenderbot
    blenderbot_small prophetnet xlm_prophetnet fsmt encoder_decoder vision_encoder_decoder speech_encoder_decoder
    whisper moonshine speech_to_text speecht5 seamless_m4t seamless_m4t_v2 pix2struct florence2 nougat""",
    "state-space, linear or recurrent layers, which keep a state and no KV": """mamba mamba2 falcon_mamba rwkv rwkv5
    rwkv6 rwkv7 jamba bamba zamba zamba2 recurrent_gemma griffin xlstm retnet nemotron_h granitemoehybrid falcon_h1
    plamo2 lfm2 lfm2_moe qwen3_next kimi_linear minimax minimax_text_01 minimax_m1 hyena stripedhyena""",
    "an encoder, which generates no text": """bert roberta xlm_roberta xlm_roberta_xl camembert distilbert albert
    electra deberta deberta_v2 modernbert mpnet nomic_bert big_bird longformer ernie esm eurobert neobert funnel xlm
    flaubert convbert mobilebert squeezebert rembert megatron_bert roc_bert ibert data2vec_text luke xlnet layoutlm
    layoutlmv2 layoutlmv3 nystromformer reformer clip_text_model siglip_text_model""",
    "a vision or audio model without a language model": """vit vit_mae deit swin swinv2 beit dinov2 dinov3_vit convnext
    convnextv2 resnet clip clip_vision_model siglip siglip2 siglip_vision_model sam sam2 detr yolos segformer
    mask2former dpt depth_anything efficientnet regnet mobilenet_v2 mobilevit timm_wrapper ijepa vjepa2 videomae
    timesformer hiera pvt wav2vec2 hubert wavlm audio_spectrogram_transformer clap encodec""",
    "multi-head latent attention, whose cache holds one compressed vector a token and no KV heads": """deepseek_v2
    deepseek_v3 deepseek_v32 kimi_k2 minicpm3 longcat_flash glm4_moe_lite glm_moe_dsa""",
    "attention layers of different kinds": "llama4 llama4_text mllama mllama_text_model gemma3n gemma3n_text",
}
_REFUSED = {_folded(name): reason for reason, names in _REASONS.items() for name in names.split()}


def check_family(model_type: str, architectures: list[str]) -> str | None:
    """What a spec must say of a family that is not known; None for one that is.

    Raises ValueError, without the file's name, for a family that cannot be read.
    """
    stated = [("model_type", model_type, model_type)] if model_type else []
    stated += [("architectures", name, _ENDINGS.sub("", name)) for name in architectures]
    for field, value, family in stated:
        reason = _REFUSED.get(_bare(family))
        if reason is not None:
            raise ValueError(f"{field} is {value!r}: not supported, it means {reason}; take a decoder-only model")
    if not stated:
        return "no model_type stated, read as a Llama-like decoder"
    unknown = next((value for _, value, family in stated if _bare(family) not in _DECODERS), None)
    return None if unknown is None else f"unknown family {unknown} read as a Llama-like decoder"


def _bare(family: str) -> str:
    """Folded, without the ending that a multimodal file gives the type of its language model."""
    folded = _folded(family)
    return folded if folded in _REFUSED else re.sub(r"(text|textmodel)$", "", folded)
