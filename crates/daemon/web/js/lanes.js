// Rows of many small bars as one small picture. A row costs the same whether it has ten bars or ten thousand: what is
// kept of a bar is how much of each pixel it covers.

/** Bars in rows, one pixel of the screen high until they are drawn. */
export class Lanes {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.context = this.canvas.getContext("2d");
  }

  /** Forgets all bars; the size is in CSS pixels. */
  clear(width, rows) {
    this.scale = window.devicePixelRatio || 1;
    this.width = width;
    this.rows = rows;
    const wide = Math.max(1, Math.round(width * this.scale));
    if (this.canvas.width !== wide || this.canvas.height !== rows) {
      this.canvas.width = wide;
      this.canvas.height = rows;
      this.covered = new Float32Array(wide * rows);
      this.image = new ImageData(wide, rows);
    } else this.covered.fill(0);
  }

  /** Adds a bar to a row. */
  add(row, left, right) {
    const base = row * this.canvas.width;
    const from = left * this.scale;
    const to = Math.min(this.canvas.width, right * this.scale);
    const first = Math.floor(from);
    const last = Math.min(this.canvas.width - 1, Math.floor(to));
    if (first >= last) {
      if (first < this.canvas.width) this.covered[base + first] += to - from;
      return;
    }
    this.covered[base + first] += first + 1 - from;
    this.covered.fill(1, base + first + 1, base + last);
    this.covered[base + last] += to - last;
  }

  /** Draws the rows in their colours; `place` tells where a row begins and how high it is. */
  draw(context, colors, place) {
    const { data } = this.image;
    for (let at = 0; at < this.covered.length; at += 1) data[at * 4 + 3] = this.covered[at] * 255;
    this.context.putImageData(this.image, 0, 0);
    // Colours only what is covered, as much as it is covered.
    this.context.globalCompositeOperation = "source-atop";
    context.imageSmoothingEnabled = false;
    for (let row = 0; row < this.rows; row += 1) {
      this.context.fillStyle = colors[row];
      this.context.fillRect(0, row, this.canvas.width, 1);
    }
    for (let row = 0; row < this.rows; row += 1) {
      const [top, tall] = place(row);
      context.drawImage(this.canvas, 0, row, this.canvas.width, 1, 0, top, this.width, tall);
    }
  }
}
