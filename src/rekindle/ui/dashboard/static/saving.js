// Download what a chart shows: its points as CSV, or the chart with title and legend as PNG.

const FONT = "12px system-ui, sans-serif";
const LINE = 20;

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name.replace(/[^\p{L}\p{N}._ -]+/gu, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// `data` is that of the chart: the axis, then least, most, mean and smoothed mean of each line.
export function saveCsv(title, axis, lines, data) {
  const heads = [axis];
  const columns = [data[0]];
  lines.forEach((line, index) => {
    const label = line.label || title;
    for (const [name, column] of [[label, data[4 * index + 3]], [`${label}, min`, data[4 * index + 1]], [`${label}, max`, data[4 * index + 2]]]) {
      if (!column.some((value) => value !== null)) continue;
      heads.push(name);
      columns.push(column);
    }
  });
  const rows = data[0].map((_, row) => columns.map((column) => column[row] ?? "").join(","));
  download(new Blob([`${[heads.map(quoted).join(","), ...rows].join("\n")}\n`], { type: "text/csv" }), `${title}.csv`);
}

// A spreadsheet would run a name that begins like a formula.
function quoted(text) {
  return `"${text.replace(/^[=+@\t\r-]/, "'$&").replaceAll('"', '""')}"`;
}

export function savePng(title, lines, plot, { text, ground }) {
  const source = plot.ctx.canvas;
  const ratio = source.width / plot.width;
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  context.font = FONT;
  const named = lines.filter((line) => line.label);
  const places = [];
  let [x, y] = [12, LINE + 14];
  for (const line of named) {
    const width = 18 + context.measureText(line.label).width + 16;
    if (x > 12 && x + width > plot.width) [x, y] = [12, y + LINE];
    places.push([x, y, line]);
    x += width;
  }
  const top = named.length ? y + LINE / 2 + 4 : LINE + 8;
  canvas.width = source.width;
  canvas.height = source.height + Math.round(top * ratio);
  context.fillStyle = ground;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(source, 0, Math.round(top * ratio));
  context.scale(ratio, ratio);
  context.textBaseline = "middle";
  context.fillStyle = text;
  context.font = `600 ${FONT}`;
  context.fillText(title, 12, 14);
  context.font = FONT;
  for (const [left, middle, line] of places) {
    context.strokeStyle = line.stroke;
    context.lineWidth = 2;
    context.setLineDash(line.dash);
    context.beginPath();
    context.moveTo(left, middle);
    context.lineTo(left + 13, middle);
    context.stroke();
    context.fillText(line.label, left + 18, middle);
  }
  canvas.toBlob((blob) => download(blob, `${title}.png`));
}
