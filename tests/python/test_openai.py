"""OpenAI's own package against the server."""

import json

import jsonschema_rs
import openai
import pytest

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": WEATHER}}
STORY = [{"role": "user", "content": "Tell me about a dog and a ball."}]


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client, messages=STORY, **more):
    return client.chat.completions.create(**{"model": "m", "messages": messages, "max_tokens": 24, "temperature": 0, **more})


def test_a_chat_and_its_stream_are_one_text(client):
    whole = chat(client)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == choice.message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == choice.finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    # The whole prompt but its last tokens was known.
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens >= 0.9 * whole.usage.prompt_tokens


def test_a_seed_gives_the_same_text_again(client):
    texts = {chat(client, temperature=1.0, seed=seed).choices[0].message.content for seed in (1, 2, 1, 2)}
    assert len(texts) == 2


def test_stop_texts_end_an_answer_and_are_no_part_of_it(client):
    whole = chat(client).choices[0].message.content
    stop = whole[5:9]
    cut = chat(client, stop=stop).choices[0]
    assert cut.message.content == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


def test_probabilities(client):
    answer = chat(client, logprobs=True, top_logprobs=3, max_tokens=5).choices[0]
    tokens = answer.logprobs.content
    assert "".join(token.token for token in tokens) == answer.message.content
    for token in tokens:
        likely = [top.logprob for top in token.top_logprobs]
        assert len(likely) == 3 and likely == sorted(likely, reverse=True)
        # A greedy choice is the likeliest.
        assert token.logprob == likely[0] <= 0


def test_a_biased_token_never_comes(client):
    token = chat(client, logprobs=True, max_tokens=1).choices[0].logprobs.content[0]
    ids = json.loads(client._client.post(str(client.base_url).replace("/v1/", "/tokenize"), json={"content": token.token}).text)
    other = chat(client, logprobs=True, max_tokens=1, logit_bias={str(ids["tokens"][0]): -100})
    assert other.choices[0].logprobs.content[0].token != token.token


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_demanded_tool_is_called(client, choice):
    answer = chat(client, tools=[TOOL], tool_choice=choice, max_tokens=200, parallel_tool_calls=False).choices[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls
    assert call.function.name == "weather" and call.id
    jsonschema_rs.validate(WEATHER, json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
    after = chat(client, [*STORY, answer.message.model_dump(exclude_none=True), result], tools=[TOOL])
    assert after.choices[0].message.content


def test_a_streamed_call_is_the_same_call(client):
    with client.chat.completions.stream(
        model="m", messages=STORY, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200, temperature=0
    ) as stream:
        final = stream.get_final_completion()
    call = final.choices[0].message.tool_calls[0]
    jsonschema_rs.validate(WEATHER, json.loads(call.function.arguments))


def test_schemas_bind(client):
    schema = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER, "strict": True}}
    for seed in range(2):
        answer = chat(client, response_format=schema, max_tokens=1_000, temperature=0.5, seed=seed).choices[0]
        assert answer.finish_reason == "stop"
        jsonschema_rs.validate(WEATHER, json.loads(answer.message.content))


def test_responses(client):
    ask = {"model": "m", "input": "Tell me about a dog.", "instructions": "Be brief.", "max_output_tokens": 20, "temperature": 0}
    whole = client.responses.create(**ask)
    assert whole.output_text and whole.status in ("completed", "incomplete")
    assert whole.usage.input_tokens > 0 and whole.usage.output_tokens > 0
    with client.responses.stream(**ask) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert kinds[0] == "response.created" and "response.output_text.delta" in kinds
    tool = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    called = client.responses.create(**{**ask, "max_output_tokens": 200}, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    [call] = [item for item in called.output if item.type == "function_call"]
    jsonschema_rs.validate(WEATHER, json.loads(call.arguments))


def test_plain_texts_go_on(client):
    answer = client.completions.create(model="m", prompt="Once upon a time", max_tokens=8, temperature=0)
    assert answer.choices[0].text and answer.usage.completion_tokens == 8
    pieces = client.completions.create(model="m", prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == answer.choices[0].text


def test_the_model_is_listed(client):
    [model] = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_are_the_package_s_own(client):
    for more, param in [
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
    ]:
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, **more)
        assert caught.value.param == param and param in str(caught.value)
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, max_tokens=8192)
    assert caught.value.code == "context_length_exceeded" and "8192" in str(caught.value)


def turns(client, messages, **more):
    """What a turn's usage says: tokens of the prompt, and those that were known."""
    usage = chat(client, messages, **more).usage
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


def test_two_equal_prompts_and_an_edit_of_the_last_message(client):
    long = [{"role": "user", "content": "The bird sang in the old tree. " * 60}]
    long += [{"role": "assistant", "content": "It did."}]
    first, _ = turns(client, [*long, {"role": "user", "content": "And then?"}])
    again, known = turns(client, [*long, {"role": "user", "content": "And then?"}])
    assert again == first and known >= 0.95 * first
    edited, known = turns(client, [*long, {"role": "user", "content": "Why?"}])
    assert known >= 0.8 * edited


def test_regenerate_rewinds(client):
    long = [{"role": "user", "content": "A cat sat on the mat and looked at the moon. " * 50}]
    texts = {chat(client, long, temperature=1.0, seed=seed, max_tokens=30).choices[0].message.content for seed in range(3)}
    assert len(texts) > 1
    tokens, known = turns(client, long)
    assert known >= 0.95 * tokens


def test_300_turns(server):
    """A conversation of 300 turns: what was said is not read again."""
    messages = []
    read = 0
    for turn in range(300):
        messages.append({"role": "user", "content": f"Say {turn}."})
        # The package would take longer over the messages than the model.
        answer = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 3, "temperature": 0})
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        usage = answer["usage"]
        read += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    # Each turn is read once, and what a template or a cut answer changes at its end again.
    assert read < 2 * usage["prompt_tokens"], (read, usage["prompt_tokens"])
