"""Keys, and what is told to who has none."""

import anthropic
import openai
import pytest

from server import Server


def test_keys():
    with Server("--context", "256", "--api-key", "secret") as server:
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=server.url + "/v1", api_key="wrong").models.list()
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=server.url, api_key="wrong").models.list()
        assert openai.OpenAI(base_url=server.url + "/v1", api_key="secret").models.list().data
        assert anthropic.Anthropic(base_url=server.url, api_key="secret").models.list().data
