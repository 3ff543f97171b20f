from pathlib import Path

from proxy.store.secrets import load_or_create_secret, read_secret


def test_a_secret_is_made_once_and_kept(tmp_path: Path) -> None:
    secret = load_or_create_secret(tmp_path / "data" / "token")
    assert len(secret) >= 43  # 256 bits
    assert load_or_create_secret(tmp_path / "data" / "token") == secret
    assert load_or_create_secret(tmp_path / "other") != secret


def test_a_secret_is_its_owners_alone(tmp_path: Path) -> None:
    load_or_create_secret(tmp_path / "data" / "token")
    assert (tmp_path / "data" / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_a_secret_is_read_where_there_is_one_and_none_is_made(tmp_path: Path) -> None:
    secret = load_or_create_secret(tmp_path / "token")
    assert read_secret(tmp_path / "token") == secret
    assert read_secret(tmp_path / "none") == ""
    (tmp_path / "garbage").write_bytes(b"\xff\xfe")
    assert read_secret(tmp_path / "garbage") == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["garbage", "token"]
