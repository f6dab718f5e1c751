"""A JVM without Spark, in which `levada check` and `levada plan` open a destination whose libraries are Java's.

A Spark session starts in several CPU seconds, and a check needs none of its tasks. `levada.runtime.resources.bare_jvm`
starts the JVM, once a destination needs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JavaObject = Any
"""py4j has no types."""


@dataclass(frozen=True, slots=True)
class CheckJvm(ABC):
    """A JVM with the classes of Spark and of the destination's jars, and the settings that a session would have.

    ``settings`` are secret. ``is_plain`` is True if neither they nor the environment change how a JVM reaches files and
    servers.
    """

    settings: Mapping[str, str] = field(repr=False)
    is_plain: bool

    @property
    @abstractmethod
    def gateway(self) -> JavaObject:
        """The gateway of py4j. The JVM starts with the first use. Raise NeedsOperator ``spark_start_failed``."""

    def hadoop_conf(self) -> JavaObject:
        """Return a new configuration of Hadoop, as Spark derives it from the settings, files and the environment."""
        spark = self.gateway.jvm.org.apache.spark
        conf = spark.SparkConf(False)
        for name, value in self.settings.items():
            conf.set(name, value)
        return spark.deploy.SparkHadoopUtil.get().newConfiguration(conf)
