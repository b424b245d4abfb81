"""Anthropic's own package against the server."""

import anthropic
import jsonschema_rs
import pytest

from test_openai import WEATHER

TOOL = {"name": "weather", "description": "Tells the weather.", "input_schema": WEATHER}
STORY = [{"role": "user", "content": "Tell me about a dog and a ball."}]
# The package no longer knows temperature by itself.
ASK = {"model": "m", "messages": STORY, "max_tokens": 24, "extra_body": {"temperature": 0}}


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_and_its_stream_are_one_text(client):
    whole = client.messages.create(**ASK)
    [block] = whole.content
    assert block.type == "text" and block.text
    assert whole.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == block.text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.cache_read_input_tokens > 0


def test_tokens_are_counted(client):
    ask = {key: ASK[key] for key in ("model", "messages")}
    counted = client.messages.count_tokens(**ask, system="Be brief.").input_tokens
    usage = client.messages.create(**ASK, system="Be brief.").usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_a_demanded_tool_is_called(client):
    choice = {"type": "any", "disable_parallel_tool_use": True}
    ask = {**ASK, "tools": [TOOL], "tool_choice": choice, "max_tokens": 200}
    answer = client.messages.create(**ask)
    assert answer.stop_reason == "tool_use"
    [call] = [block for block in answer.content if block.type == "tool_use"]
    jsonschema_rs.validate(WEATHER, call.input)
    with client.messages.stream(**ask) as stream:
        streamed = stream.get_final_message()
    assert [block.input for block in streamed.content if block.type == "tool_use"] == [call.input]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    messages = [*STORY, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**{**ASK, "messages": messages}, tools=[TOOL]).content


def test_stop_sequences_are_told(client):
    text = client.messages.create(**ASK).content[0].text
    answer = client.messages.create(**ASK, stop_sequences=[text[5:9]])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", text[5:9])


def test_errors_are_the_package_s_own(client):
    for more in ({"messages": []}, {"max_tokens": 9_000}, {"extra_body": {"temperature": "hot"}}):
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(**{**ASK, **more})
        assert caught.value.body["error"]["type"] == "invalid_request_error"
    image = {"type": "image", "source": {"type": "url", "url": "http://example.com/a.png"}}
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**ASK, "messages": [{"role": "user", "content": [image]}]})


def test_the_model_is_listed(client):
    [model] = client.models.list().data
    assert model.id == model.display_name
