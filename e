[prompt: 11 tokens, 374.7 tok/s | written: 5 tokens, 144.7 tok/s, stopped at --tokens]
