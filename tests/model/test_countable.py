"""Values that are counted."""

from proxy.model.messages import CountedContent, Medium, TokenWeight


def test_what_a_request_does_not_tell_of_a_medium_is_0() -> None:
    medium = Medium("image")
    assert (medium.width, medium.height, medium.pages, medium.seconds, medium.size) == (0, 0, 0, 0.0, 0)
    assert not medium.is_low


def test_text_alone_has_neither_media_nor_frame_and_its_weight_is_counted() -> None:
    assert CountedContent("a") == CountedContent("a", (), 0)
    assert TokenWeight(1) == TokenWeight(1, (), is_estimate=False)
