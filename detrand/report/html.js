for (const button of document.querySelectorAll("button[data-text]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const area = document.createElement("textarea");
    area.value = button.dataset.text;
    document.body.append(area);
    area.select();
    button.textContent = document.execCommand("copy") ? "copied" : "not copied";
    area.remove();
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
