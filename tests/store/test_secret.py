from pathlib import Path

from proxy.store.secret import load_or_create_secret


def test_a_secret_is_made_once_and_kept(tmp_path: Path) -> None:
    secret = load_or_create_secret(tmp_path / "data" / "token")
    assert len(secret) >= 43  # 256 bits
    assert load_or_create_secret(tmp_path / "data" / "token") == secret
    assert load_or_create_secret(tmp_path / "other") != secret


def test_a_secret_is_its_owners_alone(tmp_path: Path) -> None:
    load_or_create_secret(tmp_path / "data" / "token")
    assert (tmp_path / "data" / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
