"""What an operator sees and does on a running node."""

from __future__ import annotations

from braidmq.operations.answers import NodeAnswers
from braidmq.operations.core import CoreOperations
from braidmq.operations.core_answers import CoreAnswers
from braidmq.operations.drain import Drain
from braidmq.operations.node import NodeOperations
from braidmq.operations.replicant import ReplicantOperations

__all__ = ["CoreAnswers", "CoreOperations", "Drain", "NodeAnswers", "NodeOperations", "ReplicantOperations"]
