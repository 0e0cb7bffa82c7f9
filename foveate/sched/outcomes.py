"""What a step may give back, and what a client may hear of its failure.

Owns the check of a result against its plan, made before anything is changed by it, and the wording of errors that were
not meant for clients. Refuses to change anything itself.
"""

from __future__ import annotations

from foveate.core.errors import FoveateError, StepFailed
from foveate.core.plan import Slice, StepPlan, StepResult


def decodes(piece: Slice) -> bool:
    """Whether a slice holds an output token, with drafts or without, and nothing else."""
    return piece.draw is not None and piece.draw.index > 0 and len(piece.tokens) == piece.draft_len + 1


def check(plan: StepPlan, result: StepResult) -> None:
    """Assert that the result answers the plan, before anything is changed by it."""
    assert result.number == plan.number, "the result of another plan"
    assert [piece.uid for piece in plan.slices] == [outcome.uid for outcome in result.slices], "not one to one"
    for piece, outcome in zip(plan.slices, result.slices, strict=True):
        token_len = len(outcome.tokens)
        if outcome.error is None and piece.draw is None:
            assert token_len == 0, "a chunk that ends before the known tokens gives no token"
        elif outcome.error is None:
            assert 1 <= token_len <= piece.draft_len + 1, "not accepted drafts and one token more"


def public(error: Exception) -> FoveateError:
    """An error fit for a client; the engine logs the original."""
    return error if isinstance(error, FoveateError) else StepFailed("the model step failed")
