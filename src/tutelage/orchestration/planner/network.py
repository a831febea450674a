"""Network of the planner: scores the next tool, workers and edges for an instruction.

Encoder: hashed features (`text.py`) with learned weights that are initialized with the IDF. They
are summed over the text for its meaning and over each word for attention. A bucket that does not
occur in training has no vector. Decoder: one state per position, computed from the text, the
previous tool, all tools so far, the position, and attention over the words. Attention prefers words
after the words about the previous tool and avoids words that are already used. There is no
recurrence, so all positions of a known plan are scored at once and decoding a plan of 200 nodes
takes 200 small steps. A tool is a learned vector plus its encoded text, and its score includes the
words that it shares with the instruction, so tools that were not in training are represented by
their text. Edges: a score for every ordered pair of positions, from states, tools, and the context
of the words about them. `targets.py` has the loss, `model.py` the search.

Shapes: `B` texts, `P` words, `N` positions, `T` tools, `W` workers, `D` width.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutelage.orchestration.planner.text import TextBatch

POSITIONS = 32
"""Number of positions with a learned vector. Later positions share the last one."""
WINDOW = 4
"""Number of context words on each side of a word."""
STEEP = 12.0
"""Bound of the score of a word for a tool."""
LEXICAL = 6.0
"""Initial weight of shared words. The learned weight is a multiple of it."""
NEWCOMER = 1.5
"""Bonus for the score of a tool that was not in training, in place of its learned bias."""
SHARED_FLOOR = 0.02
"""Constant added to the maximum when the amounts of shared text are normalized by it."""
GAPS = 12
"""Maximum bucket index of the distance between two nodes."""
DROPOUT = 0.3
"""Dropout rate for features, hidden layers and edges."""
IDENTITY_DROPOUT = 0.2
"""Probability that a tool is treated as unknown in a training batch."""


class Encoded(NamedTuple):
    """Input of the decoder: encoded instructions and encoded tools of a catalog.

    Row T of the tools is the end. Row T+1 of `before_TD` is the start.
    """

    out_TD: Tensor
    before_TD: Tensor
    so_far_TD: Tensor
    known_T: Tensor
    """Learned index of each tool, -1 for tools that were not in training."""
    hidden_BD: Tensor
    words_BPD: Tensor
    real_BP: Tensor
    shared_BT: Tensor
    """Amount of text that each instruction shares with each tool."""
    speaks_BPT: Tensor
    """Positive match score of each word and tool; 0 for padding."""
    spoken_BT: Tensor
    """Sum of `speaks_BPT` over the words."""

    def mentions(self, tools_BN: Tensor) -> Mentions:
        """Return the words that mention each tool (T is the end, T + 1 the start)."""
        width, tools = self.speaks_BPT.shape[1:]
        index = tools_BN.clamp(max=tools - 1)
        picked_BPN = self.speaks_BPT.gather(2, index[:, None].expand(-1, width, -1))
        share_BPN = picked_BPN / self.spoken_BT.gather(1, index)[:, None]
        words_BNP = share_BPN.transpose(1, 2) * (tools_BN < tools)[:, :, None]
        places_P = torch.arange(width, dtype=torch.float32)
        return words_BNP, words_BNP @ places_P - (tools_BN > tools).float()


Mentions = tuple[Tensor, Tensor]
"""Words of the text that mention the tools at some positions: the distribution over the words
`words_BNP`, zero for the end and the start, and its mean word index `centre_BN`, -1 for the
start."""


class PlannerNetwork(nn.Module):
    """Network of the planner. `idf` (BUCKETS,) initializes the feature weights; `active` (BUCKETS,)
    marks the buckets that have a vector."""

    def __init__(self, tools: int, workers: int, d: int, idf: Tensor, active: Tensor) -> None:
        super().__init__()
        rows = int(active.sum())
        self.register_buffer("row_of", torch.where(active, active.cumsum(0) - 1, rows))
        self.row_of: Tensor
        # The last row is shared by all buckets without a vector. It stays zero.
        self.table = nn.Parameter(torch.cat([torch.randn(rows, d) * 0.02, torch.zeros(1, d)]))
        self.weights = nn.Parameter(torch.cat([idf[active] * 0.1, torch.zeros(1)]))
        self.meaning = _block(d)
        self.identity = nn.Embedding(tools + 1, d)
        self.previous = nn.Embedding(tools + 2, d)
        self.so_far = nn.Embedding(tools + 2, d)
        for table in (self.identity, self.previous, self.so_far):
            nn.init.normal_(table.weight, std=0.05)
        nn.init.zeros_(self.so_far.weight)
        self.text_scale = nn.Parameter(torch.tensor(0.5))
        self.shared = nn.Parameter(torch.ones(2))
        self.from_text = nn.Linear(d, 2 * d, bias=False)
        nn.init.zeros_(self.from_text.weight)
        self.position = nn.Embedding(POSITIONS, d)
        self.bias = nn.Parameter(torch.zeros(tools + 1))
        self.mix = _block(d)
        self.word_norm = nn.LayerNorm(d)
        self.around = nn.Parameter(torch.zeros(2 * WINDOW, d))
        self.query = nn.Linear(d, d)
        self.value = nn.Linear(d, d)
        nn.init.zeros_(self.value.weight)
        self.speak = nn.Linear(d, d, bias=False)
        nn.init.eye_(self.speak.weight)
        self.walk = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 1))
        self.cover = nn.Parameter(torch.tensor(1.0))
        self.spoken = nn.Parameter(torch.tensor([1.0, 0.5]))
        self.edge_source = nn.Linear(3 * d, d)
        self.edge_target = nn.Linear(3 * d, d)
        self.edge_features = nn.Sequential(nn.Linear(7, 32), nn.GELU(), nn.Linear(32, 1))
        self.edge_gap = nn.Embedding(2 * GAPS + 1, 1)
        nn.init.zeros_(self.edge_gap.weight)
        self.edge_bias = nn.Parameter(torch.tensor(-1.0))
        self.worker = nn.Sequential(
            nn.LayerNorm(2 * d), nn.Dropout(DROPOUT), nn.Linear(2 * d, max(1, workers))
        )

    # -------------------------------------------------------------- encoder

    def encode(
        self, texts: TextBatch, tools: TextBatch, known_T: Tensor, shared_BT: Tensor
    ) -> Encoded:
        """Encode instructions and tools for the decoder.

        `shared_BT` is the amount of text that each instruction shares with each tool.
        """
        weights_F, tool_F = self._weights(texts.ids_F), self._weights(tools.ids_F)
        ids = [texts.ids_F, tools.ids_F, texts.ids_F]
        weights = [weights_F * texts.shares_F, tool_F * tools.shares_F, weights_F]
        count = len(texts.ids_F)
        starts = [texts.text_starts_B, tools.text_starts_B + count]
        starts.append(texts.word_starts_W + count + len(tools.ids_F))
        # One call for all bags, because each call creates a gradient of the size of the table.
        rows, shares = self.row_of[torch.cat(ids)], torch.cat(weights)
        bags = F.embedding_bag(
            rows, self.table, torch.cat(starts), mode="sum", per_sample_weights=shares
        )
        text_BD, text_TD, words_WD = bags.split([len(part) for part in starts])
        hidden_BD = text_BD + self.meaning(text_BD)
        words_BPD = self.word_norm(words_WD)[texts.places_BP] * texts.real_BP[:, :, None]
        words_BPD = window_average(words_BPD, self.around)
        shared_BT = shared_BT / (shared_BT.amax(1, keepdim=True) + SHARED_FLOOR)
        seen_T = (known_T >= 0).float()
        if self.training:
            seen_T = seen_T * (torch.rand(len(known_T)) >= IDENTITY_DROPOUT)
        place_T, end = known_T.clamp(min=0), len(self.identity.weight) - 1
        before_TD, so_far_TD = self.from_text(text_TD).chunk(2, dim=-1)
        out_TD = self.identity(place_T) * seen_T[:, None] + self.text_scale * text_TD
        before_TD = self.previous(place_T) * seen_T[:, None] + before_TD
        so_far_TD = self.so_far(place_T) * seen_T[:, None] + so_far_TD
        out_TD = torch.cat([out_TD, self.identity.weight[end:]])
        before_TD = torch.cat([before_TD, self.previous.weight[end:]])
        so_far_TD = torch.cat([so_far_TD, torch.zeros(2, text_TD.shape[1])])
        # The largest tensors of a step: computed once, and gathered from later.
        spoken_TD = self.speak(out_TD[:-1]) / math.sqrt(words_BPD.shape[-1])
        match_BPT = (words_BPD @ spoken_TD.T).clamp(-STEEP, STEEP)
        speaks_BPT = match_BPT.exp() * texts.real_BP[:, :, None]
        return Encoded(
            out_TD,
            before_TD,
            so_far_TD,
            known_T,
            hidden_BD,
            words_BPD,
            texts.real_BP,
            shared_BT,
            speaks_BPT,
            speaks_BPT.sum(1),
        )

    def _weights(self, ids_F: Tensor) -> Tensor:
        weights_F = self.weights[self.row_of[ids_F]].abs()
        if self.training:
            kept = 1 - DROPOUT
            weights_F = weights_F * (torch.rand(len(ids_F)) < kept) / kept
        return weights_F

    # -------------------------------------------------------------- decoder

    def hidden_states(
        self,
        text: Encoded,
        before_BN: Tensor,
        sum_BND: Tensor,
        mentions: Mentions,
        covered_BNP: Tensor,
        position_N: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the states (B, N, D) and the attention over words (B, N, P) at each position.

        `before_BN` is the previous tool (T+1 at the start), `sum_BND` the sum of `so_far` over all
        previous tools, `mentions` the mentions of the previous tool, `covered_BNP` the sum of the
        mentions of all previous tools.
        """
        place_ND = self.position(position_N.clamp(max=POSITIONS - 1))
        state = text.hidden_BD[:, None] + text.before_TD[before_BN] + sum_BND + place_ND
        # There are fewer states than words, so keys and values are projected on their side.
        scores = self.query(state) @ text.words_BPD.transpose(1, 2) / math.sqrt(state.shape[-1])
        gap_BNP = torch.arange(text.real_BP.shape[1])[None, None] - mentions[1][:, :, None]
        gaps = (gap_BNP / 16, torch.tanh(gap_BNP / 4), torch.exp(-(gap_BNP**2) / 32))
        walked = torch.stack([*gaps, (gap_BNP < 0).float()], dim=-1)
        scores = scores + self.walk(walked).squeeze(-1) - self.cover * covered_BNP
        scores = scores.masked_fill(~text.real_BP[:, None], float("-inf"))
        attend_BNP = scores.softmax(-1)
        state = state + self.value(attend_BNP @ text.words_BPD)
        return state + self.mix(state), attend_BNP

    def type_logits(self, text: Encoded, state_BND: Tensor, attend_BNP: Tensor) -> Tensor:
        """Compute the logits (B, N, T+1) of the next tool; the last logit is the end of the plan.

        The score of a tool depends on the state, the words that the tool shares with the
        instruction, and how well the attended words match the tool.
        """
        known_T = text.known_T
        bias_T = torch.where(known_T >= 0, self.bias[known_T.clamp(min=0)], NEWCOMER)
        shared = F.pad(LEXICAL * self.shared[0] * text.shared_BT, (0, 1))
        spoken = torch.log(attend_BNP @ text.speaks_BPT + 1e-9)
        logits = state_BND @ text.out_TD.T + torch.cat([bias_T, self.bias[-1:]]) + shared[:, None]
        return logits + F.pad(self.spoken[0] * spoken, (0, 1))

    def set_logits(self, text: Encoded) -> Tensor:
        """Compute the logits (B, T) of each tool occurring anywhere in the plan."""
        spoken = text.spoken_BT.log()
        plain = text.hidden_BD @ text.out_TD[:-1].T + LEXICAL * self.shared[1] * text.shared_BT
        return plain + self.spoken[1] * (spoken - 3.0)

    def worker_logits(self, state_BND: Tensor, tool_BND: Tensor) -> Tensor:
        """Compute the logits (B, N, W) of the workers."""
        return self.worker(torch.cat([state_BND, tool_BND], dim=-1))

    def edge_logits(
        self,
        text: Encoded,
        state_BND: Tensor,
        tools_BN: Tensor,
        mentions: Mentions,
        compatible_BNN: Tensor,
        lengths_B: Tensor,
    ) -> Tensor:
        """Compute the logits (B, N, N) of edges from row to column, including the diagonal.

        The context of the words about a tool indicates its inputs.
        """
        words_BNP, centre_BN = mentions
        spoken_BND = words_BNP @ text.words_BPD
        both = torch.cat([state_BND, text.out_TD[tools_BN], spoken_BND], dim=-1)
        both = F.dropout(both, DROPOUT, self.training)
        count = both.shape[1]
        source, target = self.edge_source(both), self.edge_target(both)
        scores = source @ target.transpose(1, 2) / math.sqrt(source.shape[-1])
        steps = torch.arange(count)
        gap_NN = steps[None, :] - steps[:, None]
        length = lengths_B[:, None, None].float().clamp(min=1)
        apart_BNN = centre_BN[:, None, :] - centre_BN[:, :, None]
        known = torch.stack(
            [
                compatible_BNN,
                gap_NN.float() / length,
                (gap_NN == 1).float().expand_as(compatible_BNN),
                (steps.float()[None, None, :] / length).expand_as(compatible_BNN),
                torch.log(length).expand_as(compatible_BNN),
                torch.tanh(apart_BNN / 8),
                torch.exp(-(apart_BNN**2) / 128),
            ],
            dim=-1,
        )
        # Buckets of signed distances: exact up to 4, then powers of two.
        size_NN = gap_NN.abs()
        far_NN = 3 + torch.log2(size_NN.clamp(min=1).float()).floor().long()
        bucket_NN = torch.where(size_NN <= 4, size_NN, far_NN).clamp(max=GAPS)
        bucket_NN = torch.where(gap_NN < 0, -bucket_NN, bucket_NN) + GAPS
        by_gap = self.edge_gap(bucket_NN).squeeze(-1)
        return scores + self.edge_features(known).squeeze(-1) + by_gap + self.edge_bias


def window_average(words_BPD: Tensor, weights_WD: Tensor) -> Tensor:
    """Add to each word the weighted sum of its neighbours. The weights are (2 * WINDOW, D): first
    those of the previous words (nearest first), then those of the next words (nearest last)."""
    return cast("Tensor", _WindowSum.apply(words_BPD, weights_WD))


class _WindowSum(torch.autograd.Function):
    """Weighted sum of neighbours with in-place additions, to save memory."""

    @staticmethod
    def forward(ctx: Any, words: Tensor, weights: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(words, weights)
        return _shifted_sum(words, weights, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        words, around = ctx.saved_tensors
        weights = torch.zeros_like(around)
        for step in range(1, min(WINDOW, words.shape[1] - 1) + 1):
            before, after = words[:, :-step], words[:, step:]
            weights[step - 1] = (gradient[:, step:] * before).flatten(0, 1).sum(0)
            weights[-step] = (gradient[:, :-step] * after).flatten(0, 1).sum(0)
        return _shifted_sum(gradient, around, -1), weights


def _shifted_sum(values: Tensor, weights: Tensor, direction: int) -> Tensor:
    total = values.clone()
    for step in range(1, min(WINDOW, values.shape[1] - 1) + 1):
        before, after = weights[step - 1], weights[-step]
        if direction < 0:
            before, after = after, before
        total[:, step:].addcmul_(values[:, :-step], before)
        total[:, :-step].addcmul_(values[:, step:], after)
    return total


def _block(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 2 * width),
        nn.GELU(),
        nn.Dropout(DROPOUT),
        nn.Linear(2 * width, width),
    )
