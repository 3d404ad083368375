"""The home shard of a name."""

from __future__ import annotations

import pytest

from braidmq.base.shards import shard_of

CHECK = 0xCBF43926  # of "123456789", as every description of CRC-32 has it


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7, 64])
def test_a_home_is_crc32_of_the_name_modulo_shards(shards: int) -> None:
    assert shard_of("123456789", shards) == CHECK % shards
