"""Pictures of pages for the documents: small PNG files that carry the digest of the page that they show.

A browser takes the picture and reduces its colours to a palette of 256. `BUSBAR_PICTURES=1` writes the files of docs/images
again; otherwise tests compare the digest in a file with that of the page.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
import zlib
from pathlib import Path

from playwright.sync_api import Page

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
KEYWORD = b"Source digest"
SIGNATURE = b"\x89PNG\r\n\x1a\n"

# The most frequent colours are the palette. Every other colour becomes the nearest of them.
REDUCE = """async ([source]) => {
  const image = new Image();
  image.src = 'data:image/png;base64,' + source;
  await image.decode();
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.width, image.height];
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const data = context.getImageData(0, 0, image.width, image.height).data;
  const counts = new Map();
  const colours = new Uint32Array(data.length / 4);
  for (let at = 0; at < colours.length; at++) {
    const colour = data[4 * at] << 16 | data[4 * at + 1] << 8 | data[4 * at + 2];
    colours[at] = colour;
    counts.set(colour, (counts.get(colour) || 0) + 1);
  }
  const palette = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || a - b).slice(0, 256);
  const apart = (a, b) => [16, 8, 0].reduce((sum, shift) => sum + ((a >> shift & 255) - (b >> shift & 255)) ** 2, 0);
  const index = new Map();
  for (const colour of counts.keys()) {
    let best = 0;
    for (let at = 1; at < palette.length; at++)
      if (apart(colour, palette[at]) < apart(colour, palette[best])) best = at;
    index.set(colour, best);
  }
  let text = '';
  for (const colour of colours) text += String.fromCharCode(index.get(colour));
  return [image.width, image.height, palette, btoa(text)];
}"""


def digest(html: str) -> str:
    return hashlib.sha256(html.encode()).hexdigest()


def take(page: Page, html: str, height: int) -> bytes:
    """A picture of the top of the shown page, `height` pixels of it at most, as a PNG file with the digest of `html`."""
    size = page.viewport_size
    assert size is not None
    whole = page.evaluate("document.documentElement.scrollHeight")
    shot = page.screenshot(
        full_page=True, clip={"x": 0, "y": 0, "width": size["width"], "height": min(height, whole)}
    )
    scratch = page.context.new_page()
    width, rows, palette, indexes = scratch.evaluate(REDUCE, [base64.b64encode(shot).decode()])
    scratch.close()
    return encoded(width, rows, palette, base64.b64decode(indexes), digest(html))


def encoded(width: int, height: int, palette: list[int], indexes: bytes, source: str) -> bytes:
    """A PNG file with a palette (PNG specification, 11.2 and 11.3.3.3). No filter: rows of a palette compress best so."""
    assert len(indexes) == width * height
    rows = b"".join(b"\0" + indexes[at * width : (at + 1) * width] for at in range(height))
    colours = b"".join(colour.to_bytes(3, "big") for colour in palette)
    return SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"tEXt", KEYWORD + b"\0" + source.encode()),
            (b"PLTE", colours),
            (b"IDAT", zlib.compress(rows, 9)),
            (b"IEND", b""),
        )
    )


def source_of(picture: bytes) -> tuple[int, str]:
    """The width of a PNG file of `encoded`, and the digest of its page."""
    assert picture.startswith(SIGNATURE)
    width = int.from_bytes(picture[16:20], "big")
    begin = picture.index(b"tEXt" + KEYWORD + b"\0") + len(KEYWORD) + 5
    return width, picture[begin : begin + 64].decode()


def keep(name: str, picture: bytes) -> Path:
    """The file of a picture in the documents, written if that was requested."""
    path = IMAGES / f"{name}.png"
    if os.environ.get("BUSBAR_PICTURES"):
        IMAGES.mkdir(exist_ok=True)
        path.write_bytes(picture)
    return path
