"""What decides the choice of L rows of logits: tensors on the device, one entry a row."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SampleParameters:
    """Parameters of L rows. Nothing here changes from one step to the next."""

    temperature: torch.Tensor
    """[L] float32; 0 = the most likely token"""
    top_k: torch.Tensor
    """[L] int32; 0 = all tokens"""
    top_p: torch.Tensor
    """[L] float32; 1 = all tokens"""
    min_p: torch.Tensor
    """[L] float32; 0 = all tokens"""
    words: torch.Tensor
    """[L, 2] int32 from `seed_words`"""
    counts_row: torch.Tensor
    """[L] int32 row of the count tables; -1 = no penalties"""
    repetition: torch.Tensor
    """[L] float32; the three penalties, read where there is a row of counts"""
    presence: torch.Tensor
    frequency: torch.Tensor


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of the sequences with penalties."""

    output: torch.Tensor
    """[rows, vocabulary] int32: how often a token was generated; counted on by the choice"""
    prompt: torch.Tensor
    """[rows, vocabulary] bool: whether it is in the prompt"""


@dataclass(frozen=True, slots=True)
class Choice:
    """The result for L rows."""

    ids: torch.Tensor
    """[L] int64"""
    finite: torch.Tensor
    """[L] bool: the row has neither NaN nor plus infinity, and some token can come; else its id is any."""
