// Shows the data that came with the page. All of it is text: nothing that was recorded becomes markup.
const data = JSON.parse(document.getElementById("data").textContent);
const list = document.getElementById("sessions");
const whole = document.getElementById("document");

if (list) {
  for (const session of data.items ?? []) {
    const link = document.createElement("a");
    link.href = `/-/sessions/${encodeURIComponent(session.id)}`;
    link.textContent = session.title || session.name || session.family || session.id;
    const item = document.createElement("li");
    item.append(link);
    list.append(item);
  }
}
if (whole) whole.textContent = data === null ? "" : JSON.stringify(data, null, 2);
