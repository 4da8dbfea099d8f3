"""Contracts every other layer stands on: states, messages, key filters, parts, aggregation, methods, seeding."""

from monai_fedskew.core.aggregate import Aggregator, WeightedMean, weighted_mean
from monai_fedskew.core.keys import (
    KeyFilter,
    all_keys,
    except_modules,
    except_prefix,
    no_keys,
    only_prefix,
)
from monai_fedskew.core.messages import Broadcast, Evaluation, Event, History, Survey, Update
from monai_fedskew.core.method import Method, compose, parse
from monai_fedskew.core.part import STAGES, Bound, Deployment, Part, SiteView, adapt_network
from monai_fedskew.core.seeding import derive
from monai_fedskew.core.state import State, nest, own, require_same_keys, restore, snapshot, unnest

__all__ = [
    "STAGES",
    "Aggregator",
    "Bound",
    "Broadcast",
    "Deployment",
    "Evaluation",
    "Event",
    "History",
    "KeyFilter",
    "Method",
    "Part",
    "SiteView",
    "State",
    "Survey",
    "Update",
    "WeightedMean",
    "adapt_network",
    "all_keys",
    "compose",
    "derive",
    "except_modules",
    "except_prefix",
    "nest",
    "no_keys",
    "only_prefix",
    "own",
    "parse",
    "require_same_keys",
    "restore",
    "snapshot",
    "unnest",
    "weighted_mean",
]
