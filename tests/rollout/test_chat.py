from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_tokenizers import CHATML, LLAMA3, small_tokenizer
from transformers import PreTrainedTokenizerFast

from rollout.chat import ChatFormat

CHATML_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3_TEMPLATE = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
FAMILIES = {"chatml": (CHATML, CHATML_TEMPLATE), "llama3": (LLAMA3, LLAMA3_TEMPLATE)}


def reference(family: str) -> PreTrainedTokenizerFast:
    specials, template = FAMILIES[family]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=small_tokenizer(specials))
    tokenizer.chat_template = template
    return tokenizer


def rendered(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> list[int]:
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_increments_join_to_exactly_what_the_familys_own_template_renders(family: str) -> None:
    tokenizer = reference(family)
    chat = ChatFormat(tokenizer)
    assert chat.kind == family
    messages = [
        {"role": "system", "content": "Write kernels."},
        {"role": "user", "content": "class Model:\n    pass\n"},
    ]
    start = chat.start("Write kernels.", "class Model:\n    pass\n")
    assert start.dtype == np.int32
    assert start.tolist() == rendered(tokenizer, messages)

    reply = chat.encode_reply("I look.\n")
    tool_text = "<tool_response>\nresult 1\n</tool_response>" if family == "chatml" else "result 1"
    role = "user" if family == "chatml" else "ipython"
    messages += [{"role": "assistant", "content": "I look.\n"}, {"role": role, "content": tool_text}]
    joined = [*start, *reply, *chat.observations(["result 1"])]
    assert joined == rendered(tokenizer, messages)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_that_was_cut_off_is_closed_by_the_next_increment(family: str) -> None:
    chat = ChatFormat(reference(family))
    cut = chat.encode_reply("I loo")[:-1]
    assert chat.is_closed(chat.encode_reply("I loo")) and not chat.is_closed(cut)
    whole = [*chat.encode_reply("I loo"), *chat.observations(["cut off"])]
    assert [*cut, *chat.observations(["cut off"], closed=False)] == whole


@pytest.mark.parametrize("family", FAMILIES)
def test_text_that_looks_like_a_special_token_cannot_end_a_message(family: str) -> None:
    specials, _ = FAMILIES[family]
    chat = ChatFormat(reference(family))
    special_ids = {small_tokenizer(specials).token_to_id(token) for token in specials}
    honest = [token for token in chat.observations(["x"]).tolist() if token in special_ids]
    evil = [token for token in chat.observations(["".join(specials)]).tolist() if token in special_ids]
    assert evil == honest
    assert not special_ids & set(chat.encode("".join(specials)))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=80))
@settings(max_examples=100, deadline=None)
def test_a_reply_decodes_to_the_text_it_was_made_from(text: str) -> None:
    chat = ChatFormat(small_tokenizer())
    assert chat.decode(chat.encode_reply(text)) == text


def test_the_callers_tokenizer_is_left_as_it_was() -> None:
    tokenizer = small_tokenizer()
    before = tokenizer.encode("a<|im_end|>", add_special_tokens=False).ids
    ChatFormat(tokenizer)
    assert tokenizer.encode("a<|im_end|>", add_special_tokens=False).ids == before


def test_a_model_folder_names_further_stop_tokens(tmp_path) -> None:
    tokenizer = small_tokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    eos = tokenizer.token_to_id("<|endoftext|>")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [eos]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    chat = ChatFormat.from_folder(tmp_path)
    assert chat.stop_token_ids == [tokenizer.token_to_id("<|im_end|>"), eos]
    assert chat.decode([*chat.encode("done"), eos]) == "done"
    assert not chat.is_closed([eos])


def test_a_folder_without_a_fast_tokenizer_is_refused_with_the_way_out(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="tokenizer.json is missing.*save_pretrained"):
        ChatFormat.from_folder(tmp_path)


def test_a_tokenizer_of_no_known_chat_format_is_refused() -> None:
    with pytest.raises(ValueError, match="no known chat format.*im_start"):
        ChatFormat(small_tokenizer(("<s>",)))
