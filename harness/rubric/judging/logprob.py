"""The expected score: the mean over all the scores a model could have given, by its probabilities.

A judge that says 7 may have been as likely to say 8; the mean shows it, and ties less often (Liu et
al. 2023, G-Eval). It is read from the one token that the score is: the rubric sees to it that every
score is one digit.
"""

from __future__ import annotations

import math
import re

from harness.inference import Completion, TokenLogprob
from harness.rubric.judging.judgement import Judgement
from harness.rubric.judging.reply_schema import scores_of
from harness.rubric.rubric import Scale
from harness.rubric.verdict import half_up

_LEAST_MASS = 0.5
"""Where scores are less probable than everything else, the model was about to say something else,
and their mean says little."""
_DIGIT = re.compile(r"[\s\"':*]*(\d)[\s\"',}\]*]*")


def expected_score(completion: Completion, judgement: Judgement, scale: Scale) -> float | None:
    """The expected score, to the hundredth; None where the probabilities do not give one."""
    token = _token_at(completion, judgement.start)
    if token is None:
        return None
    on_scale = set(scores_of(scale))
    # The token itself need not be among the likeliest.
    likely = dict([(token.token, token.logprob), *token.top])
    mass: dict[float, float] = {}
    for text, logprob in likely.items():
        digit = _DIGIT.fullmatch(text)
        if digit is not None and int(digit[1]) in on_scale:
            mass[int(digit[1])] = mass.get(int(digit[1]), 0.0) + math.exp(logprob)
    total = sum(mass.values())
    if not total >= _LEAST_MASS:
        return None
    return half_up(sum(score * share for score, share in mass.items()) / total, 0.01)


def _token_at(completion: Completion, position: int) -> TokenLogprob | None:
    """The token that has this character of the reply's text."""
    tokens = "".join(token.token for token in completion.logprobs)
    # Before the text there may be reasoning, and white space that was taken off.
    position += tokens.rfind(completion.text) if completion.text in tokens else len(tokens)
    start = 0
    for token in completion.logprobs:
        start += len(token.token)
        if position < start:
            return token
    return None
