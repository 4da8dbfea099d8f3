"""A Flower app without monai_fedskew's federation: a ClientApp that trains a bundle, a ServerApp that averages."""

import time
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

__all__ = ["client", "server"]

POLL_SECONDS = 0.5  # ours looks as often; Flower's own send_and_receive waits 3

client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Score, train, return all of the model."""
    from by_hand import HandTrained

    site = HandTrained(str(context.node_config["bundle"]), str(context.node_config["data"]))
    received = {key: value.numpy() for key, value in message.content["tensors"].items()}
    model, samples, scores = site.do_round(received)
    tensors, plain = ArrayRecord({key: Array(value) for key, value in model.items()}), {"samples": samples, **scores}
    return Message(RecordDict({"tensors": tensors, "plain": ConfigRecord(plain)}), reply_to=message)


@client.query()
def answer(message: Message, context: Context) -> Message:
    """Only answer."""
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds; ``does`` is train, or query for a message that is only answered."""
    from by_hand import average, first_model, save

    config: Any = context.run_config
    while len(nodes := sorted(grid.get_node_ids())) < config["sites"]:
        time.sleep(POLL_SECONDS)
    model = first_model(config["bundle"])
    for number in range(1, config["rounds"] + 1):
        tensors = ArrayRecord({key: Array(value) for key, value in model.items()})
        messages = [Message(RecordDict({"tensors": tensors}), node, config["does"]) for node in nodes]
        waiting, replies = set(grid.push_messages(messages)), []
        while waiting:
            for reply in grid.pull_messages(list(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
            time.sleep(POLL_SECONDS if waiting else 0)
        if config["does"] == "train":
            found = [reply.content for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id)]
            models = [{key: value.numpy() for key, value in one["tensors"].items()} for one in found]
            model = average(models, [one["plain"]["samples"] for one in found])
        save(config["out"], number, model)
