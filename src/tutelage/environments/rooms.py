"""Rooms on a grid with a key and a door: one reward, after 6 to 20 moves.

The task shows the positions of the agent, the key and the door, and the walls between rooms. The
agent takes the key and opens the door. The possible actions are offered as text after each move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tutelage.environments.built_in import check_argument, draw_tasks
from tutelage.environments.protocol import EnvironmentFactory, Observation, Step
from tutelage.tasks.arithmetic import split_of
from tutelage.types import Message, Task

ROOMS = tuple(f"{column}{row}" for row in "123" for column in "ABC")
"""Rooms by column, from west to east, and row, from north to south."""
MAX_MOVES = 20
SHORTEST = 9
"""Minimum number of moves of the shortest solution of a layout."""
NEIGHBOURS = (
    *((f"{a}{row}", f"{b}{row}", "east", "west") for row in "123" for a, b in ("AB", "BC")),
    *((f"{col}{a}", f"{col}{b}", "south", "north") for col in "ABC" for a, b in ("12", "23")),
)
"""Neighbouring rooms, with the directions from the first to the second and back."""
TAKE, OPEN = "take key", "open door"
State = tuple[str, bool, bool]
"""The room, whether the agent has the key, and whether the door is open."""


def possible_actions(layout: Mapping[str, Any], state: State) -> dict[str, State]:
    """Return the possible actions in a state, each with the resulting state."""
    room, held, _ = state
    actions = {way: (next_room, held, False) for way, next_room in layout["ways"][room].items()}
    if room == layout["key"] and not held:
        actions[TAKE] = (room, True, False)
    if room == layout["door"] and held:
        actions[OPEN] = (room, True, True)
    return actions


def shortest_path(layout: Mapping[str, Any], state: State) -> list[str]:
    """Return the shortest list of actions that opens the door, found by breadth-first search."""
    ways: dict[State, list[str]] = {state: []}
    queue = deque([state])
    while not queue[0][2]:
        here = queue.popleft()
        for action, after in possible_actions(layout, here).items():
            if after not in ways:
                ways[after] = [*ways[here], action]
                queue.append(after)
    return ways[queue[0]]


class RoomsEnvironment:
    """An episode in one layout of rooms, which ends when the door is open."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start in the task's first room; the seed is not used."""
        self.layout, self.moves = task.fields, 0
        self.state: State = (task["start"], False, False)
        return self._observe()

    async def step(self, action: Message) -> Step:
        """Apply an action; an impossible action has no effect."""
        self.moves += 1
        chosen = (action.content or "").strip()
        self.state = possible_actions(self.layout, self.state).get(chosen, self.state)
        opened = self.state[2]
        truncated = not opened and self.moves >= MAX_MOVES
        info = {"success": opened, "moves": self.moves} if opened or truncated else {}
        observation = Observation() if opened or truncated else self._observe()
        return Step(observation, float(opened), terminated=opened, truncated=truncated, info=info)

    async def close(self) -> None:
        """Do nothing, since there are no resources to free."""

    def _observe(self) -> Observation:
        """Return the room, its possible actions and the state."""
        room, held, _ = self.state
        actions = tuple(possible_actions(self.layout, self.state))
        message = Message("user", f"{room}: {', '.join(actions)}")
        state = f"{room} with key" if held else room
        return Observation((message,), actions, {"state": state})


def draw_fields(split: str, rng: Random) -> dict[str, Any]:
    """Draw the fields of a task: question, start, key, door and the exits of each room."""
    while True:
        start, key, door = rng.sample(ROOMS, 3)
        ways: dict[str, dict[str, str]] = {room: {} for room in ROOMS}
        # Rooms that can be reached from one another have the same group.
        group = {room: room for room in ROOMS}
        walls: list[str] = []
        for a, b, there, back in rng.sample(NEIGHBOURS, len(NEIGHBOURS)):
            if group[a] == group[b]:
                walls.append(f"{a}{b}")
                continue
            ways[a][there] = b
            ways[b][back] = a
            old = group[b]
            for room in ROOMS:
                if group[room] == old:
                    group[room] = group[a]
        question = f"Start {start}, key {key}, door {door}. Walls: {' '.join(sorted(walls))}."
        if split_of(f"rooms: {question}") != split:
            continue
        layout = {"start": start, "key": key, "door": door, "ways": ways}
        if len(shortest_path(layout, (start, False, False))) >= SHORTEST:
            return {"question": question, **layout}


def expert(task: Task, messages: Sequence[Message]) -> Message:
    """Return the next action of the shortest solution from the conversation's current state."""
    state: State = (task["start"], False, False)
    for message in messages:
        if message.role == "assistant":
            chosen = (message.content or "").strip()
            state = possible_actions(task.fields, state).get(chosen, state)
    return Message("assistant", shortest_path(task.fields, state)[0])


def make_factory(argument: str, kwargs: Mapping[str, Any]) -> EnvironmentFactory:
    """Return the factory of `rooms`. Raises `ConfigError` for an argument or options."""
    check_argument("rooms", argument, ("",), kwargs)
    return EnvironmentFactory(
        name="rooms",
        make=RoomsEnvironment,
        tasks=lambda split, n, seed: draw_tasks("rooms", split, n, seed, draw_fields),
        expert=expert,
    )
