"""One snapshot from a learner to N nodes, as processes over libp2p on loopback.

Shows what the learner sends when every node that holds a chunk serves it, and
what a transfer costs in processor time.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
from contextlib import ExitStack, asynccontextmanager
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from benchmarks.harness import Mark, Outcome, finish
from echo2swarm.identity import Identity, load_identity
from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.network.libp2p import open_network
from echo2swarm.weights.announce import ManifestAnnouncer
from echo2swarm.weights.library import open_library
from echo2swarm.weights.publish import PolicyRules, publish_version
from echo2swarm.weights.serve import ChunkServer
from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.traffic import Traffic
from protocols.ids import PeerId, PolicyVersion, RunId
from protocols.sampling import SamplingParams

RUN: Final = RunId("transfer")
LIMIT_S: Final = 600.0
RULES: Final = PolicyRules(sampling=SamplingParams(1.0, 16, (0,)), max_staleness=0, publish_every=1)
