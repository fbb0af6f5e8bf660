/* A page of the schedule alone. */

const scheduleData = JSON.parse(document.getElementById("data").textContent);
const place = document.getElementById("app");
const title = document.createElement("h1");
title.textContent = scheduleData.title;
const drawing = document.createElement("section");
const foot = document.createElement("footer");
foot.className = "faint";
foot.textContent = `Made by namedmesh ${scheduleData.version}. The order is the compiler's; seconds are estimates.`;
place.replaceChildren(title, drawing, foot);
showSchedule(drawing, scheduleData);
