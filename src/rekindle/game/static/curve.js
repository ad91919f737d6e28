/** The learning curve: food eaten in 100 moves, drawn over the moves made. */

const MOST_POINTS = 240;

export class Curve {
  #canvas;
  #points = [];
  #marks = [];
  #baseline;
  #width = 0;
  #height = 0;
  #ratio = 1;
  #colours = {};
  #font = "";

  /** `baseline` is what creatures that move at random reach. */
  constructor(canvas, baseline) {
    this.#canvas = canvas;
    this.#baseline = baseline;
  }

  get points() {
    return this.#points;
  }

  /** Add a point; it is drawn after the frame. */
  add(moves, value) {
    this.#points.push([moves, value]);
    if (this.#points.length > MOST_POINTS) {
      // Two neighbours become one, so that the whole training stays in view.
      const halved = [];
      for (let index = 0; index + 1 < this.#points.length; index += 2) {
        const [one, other] = [this.#points[index], this.#points[index + 1]];
        halved.push([other[0], (one[1] + other[1]) / 2]);
      }
      this.#points = halved;
    }
    setTimeout(() => this.draw());
  }

  /** Mark a moment, such as a kill of the server. */
  mark(moves) {
    this.#marks.push(moves);
    this.draw();
  }

  /** Read the colours of the page again. */
  restyle() {
    const style = getComputedStyle(document.documentElement);
    const names = ["faint", "line", "bad", "accent"];
    this.#colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.#font = `10px ${style.getPropertyValue("--sans").trim()}`;
    this.draw();
  }

  /** Fit the bitmap to the size on the page. */
  resize() {
    const canvas = this.#canvas;
    const { width, height } = canvas.getBoundingClientRect();
    this.#ratio = Math.min(2, globalThis.devicePixelRatio || 1);
    this.#width = width;
    this.#height = height;
    canvas.width = Math.round(width * this.#ratio);
    canvas.height = Math.round(height * this.#ratio);
    this.draw();
  }

  draw() {
    const context = this.#canvas.getContext("2d");
    const [width, height, ratio, colours] = [this.#width, this.#height, this.#ratio, this.#colours];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const left = 22;
    const right = width - 6;
    const top = 8;
    const bottom = height - 16;
    const most = Math.max(4, Math.ceil(Math.max(0, ...this.#points.map((point) => point[1])) / 2) * 2);
    const end = Math.max(10_000, this.#points.at(-1)?.[0] ?? 0);
    const x = (moves) => left + ((right - left) * moves) / end;
    const y = (value) => bottom - ((bottom - top) * value) / most;
    context.font = this.#font;
    context.fillStyle = colours.faint;
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let value = 0; value <= most; value += most > 8 ? 4 : 2) {
      context.beginPath();
      context.moveTo(left, Math.round(y(value)) + 0.5);
      context.lineTo(right, Math.round(y(value)) + 0.5);
      context.stroke();
      context.fillText(String(value), left - 6, y(value));
    }
    context.textBaseline = "alphabetic";
    context.fillText(`${Math.round(end / 1000)}k moves`, right, height - 2);
    context.textAlign = "left";
    context.fillText("0", left, height - 2);
    context.setLineDash([3, 3]);
    context.strokeStyle = colours.faint;
    context.beginPath();
    context.moveTo(left, y(this.#baseline));
    context.lineTo(right, y(this.#baseline));
    context.stroke();
    context.setLineDash([]);
    context.textAlign = "right";
    context.fillText("random moves", right - 2, y(this.#baseline) - 4);
    context.strokeStyle = colours.bad;
    for (const mark of this.#marks) {
      context.beginPath();
      context.moveTo(x(mark), top);
      context.lineTo(x(mark), bottom);
      context.stroke();
    }
    if (this.#points.length === 0) return;
    context.lineJoin = "round";
    context.lineWidth = 2;
    context.strokeStyle = colours.accent;
    context.beginPath();
    for (const [moves, value] of this.#points) context.lineTo(x(moves), y(value));
    context.stroke();
    context.lineTo(x(this.#points.at(-1)[0]), bottom);
    context.lineTo(x(this.#points[0][0]), bottom);
    context.globalAlpha = 0.1;
    context.fillStyle = colours.accent;
    context.fill();
    context.globalAlpha = 1;
  }
}
