"""A pipeline for the rows of `tickets.csv`; one fails, since `queues.json` lacks its subject."""

import json
from pathlib import Path

from harness import Pipeline, Run

tickets = Pipeline("tickets")


@tickets.node(models=["producer"])
async def subject(run: Run, text: str) -> str:
    return await run.chat("producer", f"Subject of: {text}")


@tickets.node
def queue(subject: str) -> str:
    return json.loads(Path("queues.json").read_text())[subject]
