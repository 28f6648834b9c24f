#include "trainer/report/page_style.h"

namespace trireme::report {

const char* const kPageStyle = R"css(
:root{color-scheme:light dark;--bg:#fff;--panel:#f6f7f9;--text:#16191d;--muted:#59626d;--line:#e1e4e9;--grid:#e8ebef;--accent:#0b62b0;--warn:#fff4d6;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#e69f00;--c5:#56b4e9;--c6:#4d4d4d;--c7:#d8c61c;--c8:#b0b0b0;
--h0:#08519c;--h1:#3182bd;--h2:#7fb5d8;--h3:#c6dbec;--h4:#f0f1f2;--h5:#fddcb5;--h6:#fdae6b;--h7:#e6670c;--h8:#8c2d04}
@media(prefers-color-scheme:dark){:root{--bg:#121519;--panel:#1b1f25;--text:#e7e9ec;--muted:#9ba5b1;--line:#323942;--grid:#272d35;--accent:#7ab8f0;--warn:#3b321a;
--c0:#4fa3e0;--c1:#f2803d;--c2:#2cc498;--c3:#e39bc5;--c4:#f3b73a;--c5:#93d2f5;--c6:#c3c8ce;--c7:#efe35b;--c8:#767d86;
--h0:#9ecae9;--h1:#5aa2d6;--h2:#2f74aa;--h3:#244b6b;--h4:#262b32;--h5:#5c4023;--h6:#94571f;--h7:#e07b1f;--h8:#ffc27d}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-padding-top:4.5rem}
body{margin:0;background:var(--bg);color:var(--text);font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
header,main,footer{max-width:1180px;margin:0 auto;padding:0 clamp(12px,3vw,28px)}
header{padding-top:26px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:38px 0 10px;letter-spacing:-.005em}
h3{font-size:1rem;margin:20px 0 6px;overflow-wrap:anywhere}
p{margin:6px 0}
.sub,.note,small{color:var(--muted)}
.notice{background:var(--warn);border-radius:8px;padding:8px 14px;margin:14px 0;overflow-wrap:anywhere}
a{color:var(--accent)}
.state{position:fixed;top:0;left:0;opacity:0;pointer-events:none}
.bar-top{position:sticky;top:0;z-index:5;background:var(--bg);border-bottom:1px solid var(--line);margin-top:14px}
.bar-top>div{max-width:1180px;margin:0 auto;padding:7px clamp(12px,3vw,28px);display:flex;flex-wrap:wrap;gap:6px 18px;align-items:center}
.choice{display:inline-flex;border:1px solid var(--line);border-radius:8px;overflow:hidden}
.choice label{padding:3px 12px;cursor:pointer;font-size:.9rem}
.choice label+label{border-left:1px solid var(--line)}
.runs{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:.9rem;min-width:0}
.runs label{cursor:pointer;display:inline-flex;align-items:center;gap:6px;max-width:100%;overflow-wrap:anywhere}
.runs i{flex:none}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(148px,1fr));gap:10px;margin:16px 0 0;padding:0}
.tile{background:var(--panel);border-radius:10px;padding:10px 14px 11px;min-width:0}
.tile dt{color:var(--muted);font-size:.82rem}
.tile dd{margin:1px 0 0;font-size:1.32rem;font-weight:600;letter-spacing:-.01em;overflow-wrap:anywhere}
.tile dd small{display:block;font-size:.78rem;font-weight:400;letter-spacing:0;line-height:1.3}
.charts{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:26px 34px}
.charts>.wide{grid-column:1/-1}
figure{margin:0;min-width:0}
figcaption{font-weight:600;margin-bottom:3px}
figcaption small{font-weight:400}
.key{display:flex;flex-wrap:wrap;gap:2px 14px;list-style:none;margin:0 0 6px;padding:0;font-size:.85rem;color:var(--muted)}
.key li{display:inline-flex;align-items:center;gap:6px;min-width:0;overflow-wrap:anywhere}
.key.tight{gap:2px 9px}
i.line,i.dash,i.dots{display:inline-block;width:18px;height:0;border:0 solid;border-top-width:3px}
i.dash{border-top-style:dashed;border-top-width:2px}
i.dots{width:8px;height:8px;border:0;border-radius:50%}
i.band{display:inline-block;width:13px;height:11px;border-radius:2px}
.plot{display:grid;grid-template-columns:3.9em minmax(0,1fr);grid-template-rows:auto 1.35em auto;font-size:.78rem;color:var(--muted);border-radius:6px;outline-offset:3px;padding-top:5px}
.plot .y{position:relative;grid-column:1;grid-row:1}
.plot .y span{position:absolute;right:7px;transform:translateY(50%);white-space:nowrap;line-height:1}
.plot .area{position:relative;grid-column:2;grid-row:1;height:230px;touch-action:pan-y;cursor:crosshair}
.wide .plot .area{height:320px}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible;clip-path:inset(0 -6px);display:block}
.plot .x{position:relative;grid-column:2;grid-row:2}
.plot .x span{position:absolute;top:4px;transform:translateX(-50%);white-space:nowrap;line-height:1}
.plot .x .end{transform:translateX(-100%)}
.plot .x .start{transform:none}
.plot .label{grid-column:2;grid-row:3;text-align:center;line-height:1.2}
svg path{fill:none;vector-effect:non-scaling-stroke}
.grid{stroke:var(--grid);stroke-width:1}
.line,.dash{stroke-width:1.7;stroke-linejoin:round;stroke-linecap:round}
path.dash{stroke-dasharray:5 4}
path.dots{stroke-width:6;stroke-linecap:round}
path.range{fill-opacity:.2;stroke:none}
path.band{fill-opacity:.16;stroke:none}
path.level{stroke-width:1.4;stroke-dasharray:7 4}
path.mark{stroke:var(--muted);stroke-width:1;stroke-dasharray:2 3}
path.shade{fill:var(--muted);fill-opacity:.14;stroke:none}
path.bar{stroke-width:9}
path.tick{stroke-width:1.6}
.c0{stroke:var(--c0)}i.c0{border-color:var(--c0)}.c1{stroke:var(--c1)}i.c1{border-color:var(--c1)}.c2{stroke:var(--c2)}i.c2{border-color:var(--c2)}
.c3{stroke:var(--c3)}i.c3{border-color:var(--c3)}.c4{stroke:var(--c4)}i.c4{border-color:var(--c4)}.c5{stroke:var(--c5)}i.c5{border-color:var(--c5)}
.c6{stroke:var(--c6)}i.c6{border-color:var(--c6)}
path.range.c0,path.band.c0{fill:var(--c0)}path.range.c1,path.band.c1{fill:var(--c1)}path.range.c2,path.band.c2{fill:var(--c2)}
path.range.c3,path.band.c3{fill:var(--c3)}path.range.c4,path.band.c4{fill:var(--c4)}path.range.c5,path.band.c5{fill:var(--c5)}
path.range.c6,path.band.c6{fill:var(--c6)}
i.dots.c0,.bars i.c0,i.band.c0{background:var(--c0)}i.dots.c1,.bars i.c1,i.band.c1{background:var(--c1)}i.dots.c2,.bars i.c2,i.band.c2{background:var(--c2)}
i.dots.c3,.bars i.c3,i.band.c3{background:var(--c3)}i.dots.c4,.bars i.c4,i.band.c4{background:var(--c4)}i.dots.c5,.bars i.c5,i.band.c5{background:var(--c5)}
i.dots.c6,.bars i.c6,i.band.c6{background:var(--c6)}.bars i.c7,i.band.c7{background:var(--c7)}.bars i.c8,i.band.c8{background:var(--c8)}
path.h0{fill:var(--h0)}path.h1{fill:var(--h1)}path.h2{fill:var(--h2)}path.h3{fill:var(--h3)}path.h4{fill:var(--h4)}path.h5{fill:var(--h5)}
path.h6{fill:var(--h6)}path.h7{fill:var(--h7)}path.h8{fill:var(--h8)}
i.h0{background:var(--h0)}i.h1{background:var(--h1)}i.h2{background:var(--h2)}i.h3{background:var(--h3)}i.h4{background:var(--h4)}
i.h5{background:var(--h5)}i.h6{background:var(--h6)}i.h7{background:var(--h7)}i.h8{background:var(--h8)}
.heat .area{background:var(--panel)}
.wide .heat .area{height:380px}
.lanes{margin-top:8px;font-size:.78rem;color:var(--muted)}
.lanes .key{margin:5px 0 0 3.9em;font-size:.82rem}
.lane{display:grid;grid-template-columns:3.9em minmax(0,1fr);align-items:center;min-height:21px}
.lane b{font-weight:400;text-align:right;padding-right:7px;line-height:1.1}
.lane svg{height:16px;width:100%;display:block;background:var(--panel);border-radius:3px}
.cursor{position:absolute;top:0;bottom:0;width:0;border-left:1px solid var(--text);opacity:.55;pointer-events:none}
.spot{position:absolute;width:9px;height:9px;margin:-4.5px 0 0 -4.5px;border-radius:50%;border:2px solid var(--bg);pointer-events:none;background:currentColor}
.cell{position:absolute;border:2px solid var(--text);pointer-events:none}
.tip{position:absolute;top:6px;z-index:4;max-width:min(340px,96%);background:var(--bg);color:var(--text);border:1px solid var(--line);border-radius:7px;box-shadow:0 3px 14px #0003;
padding:6px 10px;font-size:.8rem;line-height:1.4;pointer-events:none}
.tip b{display:block;font-weight:600}
.tip div{display:flex;gap:6px;align-items:baseline}
.tip div i{flex:none;position:relative;top:-3px}
.tip em{font-style:normal;color:var(--muted);overflow-wrap:anywhere}
.k0{color:var(--c0)}.k1{color:var(--c1)}.k2{color:var(--c2)}.k3{color:var(--c3)}.k4{color:var(--c4)}.k5{color:var(--c5)}.k6{color:var(--c6)}
.scroll{overflow-x:auto;margin:0 0 8px}
table{border-collapse:collapse;font-size:.88rem;min-width:min(100%,640px)}
.single td small{display:inline;margin-left:9px}
th,td{text-align:left;padding:4px 14px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
td,thead th{overflow-wrap:break-word}
thead th{color:var(--muted);font-weight:500}
.several td,.several thead th{min-width:7em;max-width:22em}
.several th:first-child{position:sticky;left:0;background:var(--bg);min-width:7em;max-width:44vw;z-index:1}
.several thead th{overflow-wrap:anywhere}
.figures td,.figures thead th{white-space:nowrap}
tbody th{font-weight:400}
td small{display:block;font-size:.8rem}
.config th{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.82rem}
.config td{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.82rem;min-width:5em;overflow-wrap:anywhere}
.config .set{font-weight:700}
.config .set::before{content:"\25CF";color:var(--c1);font-size:.7em;margin-right:5px;position:relative;top:-1px}
.config .default{color:var(--muted)}
#config-all:not(:checked)~main .config tr.plain{display:none}
.toggle{cursor:pointer;display:inline-flex;gap:7px;align-items:center;font-size:.88rem;color:var(--accent);margin:2px 0 8px}
.bars{width:100%}
.bars th{width:9em;font-weight:400;padding-right:10px;white-space:nowrap}
.bars td{padding:3px 0}
.bar{display:flex;align-items:center;min-height:15px}
.bar i{height:11px;min-width:1px;flex:none}
.bar i:first-child{border-radius:2px 0 0 2px}
.bar span{color:var(--muted);font-size:.8rem;padding-left:7px;white-space:nowrap}
.three{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr));gap:14px 34px}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--panel);border-radius:8px;padding:10px 14px;margin:6px 0;font-size:.85rem;max-height:22em;overflow-y:auto}
pre mark{background:none;color:var(--muted)}
details{margin:10px 0}
summary{cursor:pointer;color:var(--accent)}
footer{color:var(--muted);font-size:.82rem;margin-top:44px;padding-bottom:34px}
:focus-visible{outline:2px solid var(--accent)}
.x-tokens,.x-time{display:none}
#x-tokens:checked~main .x-tokens,#x-time:checked~main .x-time{display:grid}
#x-tokens:checked~main .x-steps,#x-time:checked~main .x-steps{display:none}
#x-steps:checked~.bar-top label[for=x-steps],#x-tokens:checked~.bar-top label[for=x-tokens],#x-time:checked~.bar-top label[for=x-time]{background:var(--accent);color:var(--bg)}
#x-steps:focus-visible~.bar-top label[for=x-steps],#x-tokens:focus-visible~.bar-top label[for=x-tokens],#x-time:focus-visible~.bar-top label[for=x-time],
#config-all:focus-visible~main label[for=config-all]{outline:2px solid var(--accent)}
@media(max-width:820px){.charts{grid-template-columns:minmax(0,1fr)}}
@media(max-width:560px){body{font-size:14px}.minor{display:none}.plot .area{height:190px}.wide .plot .area{height:230px}.wide .heat .area{height:300px}.plot,.lane{grid-template-columns:3.4em minmax(0,1fr)}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}th,td{padding-right:8px}}
@media print{.bar-top{position:static}.tile,.notice{border:1px solid #ccc}}
)css";

const char* const kPageScript = R"js(
"use strict";(()=>{
const data=JSON.parse(document.getElementById("numbers").textContent),areas=[];
const short=(v,d)=>String(+v.toPrecision(d));
const unit=(v,list)=>{for(const[size,name]of list)if(Math.abs(v)>=size)return short(v/size,4)+name;return short(v/list[list.length-1][0],4)+list[list.length-1][1]};
const formats={
number:v=>short(v,5),
count:v=>Math.abs(v)<1e6?Math.round(v).toLocaleString("en"):unit(v,[[1e12," T"],[1e9," B"],[1e6," M"]]),
duration:v=>{for(const[from,size,name]of[[172800,86400," days"],[7200,3600," h"],[120,60," min"],[1,1," s"],[1e-3,1e-3," ms"]])if(Math.abs(v)>=from)return short(v/size,4)+name;
 return v?short(v*1e6,4)+" µs":"0 s"},
clock:v=>new Date(v*1000).toISOString().slice(0,19).replace("T"," "),
bytes:v=>unit(v,[[2**40," TiB"],[2**30," GiB"],[2**20," MiB"],[2**10," KiB"],[1," B"]]),
percent:v=>short(100*v,4)+" %"};
const place=(axis,v)=>axis.log?Math.log(v/axis.low)/Math.log(axis.high/axis.low):(v-axis.low)/(axis.high-axis.low);
const value=(axis,p)=>axis.log?axis.low*Math.pow(axis.high/axis.low,p):axis.low+p*(axis.high-axis.low);
const nearest=(xs,v)=>{let a=0,b=xs.length-1;while(b-a>1){const m=(a+b)>>1;xs[m]<v?a=m:b=m}return b>a&&Math.abs(xs[b]-v)<Math.abs(xs[a]-v)?b:a};
const make=(parent,tag,name,text)=>{const e=document.createElement(tag);e.className=name;if(text!==undefined)e.textContent=text;parent.appendChild(e);return e};
const hidden=run=>{const box=document.getElementById("run-"+run);return box!==null&&!box.checked};
function clear(s){for(const e of s.extra)e.remove();s.extra=[]}
function clearAll(){areas.forEach(clear)}
function tip(s,left,title){
 const t=make(s.area,"div","tip");t.setAttribute("role","status");make(t,"b","",title);s.extra.push(t);
 t.side=()=>{const w=s.area.clientWidth,x=left*w;t.style.left=Math.max(0,Math.min(w-t.offsetWidth,x<w/2?x+14:x-14-t.offsetWidth))+"px"};return t}
function cursor(s,left){const c=make(s.area,"div","cursor");c.style.left=100*left+"%";s.extra.push(c)}
function readings(s,x){
 const found=[];
 for(const c of s.plot.curves){
  if(hidden(c.run))continue;
  const xs=data.arrays[c.x];if(!xs.length)continue;
  const i=nearest(xs,x),span=Math.max(1e-12,(s.plot.x.high-s.plot.x.low)/50);
  if(Math.abs(xs[i]-x)<=Math.max(span,i?xs[i]-xs[i-1]:0,i+1<xs.length?xs[i+1]-xs[i]:0))found.push({c,i,x:xs[i],d:Math.abs(xs[i]-x)});
 }
 return found}
function show(s,x,full){
 clear(s);const found=readings(s,x);if(!found.length)return null;
 const best=found.reduce((a,b)=>b.d<a.d?b:a),p=s.plot,left=place(p.x,best.x);cursor(s,left);
 const f=formats[p.y.quantity],t=full?tip(s,left,p.x.label==="tokens"?formats.count(best.x)+" tokens":({steps:"step","time, UTC":"UTC"}[p.x.label]||p.x.label)+" "+formats[p.x.quantity](best.x)):null;
 for(const r of found){
  const v=data.arrays[r.c.y][r.i];if(v===null)continue;
  const spot=make(s.area,"div","spot k"+r.c.color);spot.style.left=100*place(p.x,r.x)+"%";spot.style.top=100*(1-Math.max(0,Math.min(1,place(p.y,v))))+"%";s.extra.push(spot);
  if(!t)continue;
  const row=make(t,"div","");make(row,"i","line c"+r.c.color);make(row,"span","",f(v));
  const lo=r.c.low===undefined?null:data.arrays[r.c.low][r.i],hi=r.c.high===undefined?null:data.arrays[r.c.high][r.i];
  make(row,"em","",r.c.name+(lo!==null&&hi!==null&&lo!==hi?" ("+f(lo)+" – "+f(hi)+")":""));
 }
 if(t)t.side();s.x=best.x;return best}
function showHeat(s,row,column){
 clear(s);const h=s.plot.heat,n=h.steps.length;s.row=row=Math.max(0,Math.min(h.rows-1,row));s.column=column=Math.max(0,Math.min(n-1,column));
 const b=make(s.area,"div","cell");b.style.left=100*column/n+"%";b.style.top=100*row/h.rows+"%";b.style.width="calc("+100/n+"% + 2px)";b.style.height="calc("+100/h.rows+"% + 2px)";s.extra.push(b);
 const[first,last]=h.steps[column],a=row*h.ranks_per_row,z=Math.min(h.ranks,a+h.ranks_per_row)-1;
 const t=tip(s,(column+.5)/n,(a===z?"rank "+a:"slowest of ranks "+a+"–"+z)+", "+(first===last?"step "+formats.count(first):"steps "+formats.count(first)+"–"+formats.count(last)));
 const code="ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".indexOf(h.cells[row*n+column]);
 make(t,"div","",code<0?"not recorded":(code===0?"at most ":code===63?"at least ":"")+(.5+code*.02).toFixed(2)+" × the median of all ranks");t.side()}
for(const e of document.querySelectorAll(".plot[data-plot]")){
 const s={plot:data.plots[e.dataset.plot],area:e.querySelector(".area"),extra:[],x:null,row:0,column:0};areas.push(s);
 const at=event=>{const r=s.area.getBoundingClientRect();return[(event.clientX-r.left)/r.width,(event.clientY-r.top)/r.height]};
 const all=x=>{const best=show(s,x,true);if(best)for(const o of areas)if(o!==s&&!o.plot.heat&&o.plot.link===s.plot.link&&o.area.offsetParent!==null)show(o,best.x,false)};
 const move=event=>{const[p,q]=at(event);if(s.plot.heat)showHeat(s,Math.floor(q*s.plot.heat.rows),Math.floor(p*s.plot.heat.steps.length));else all(value(s.plot.x,p))};
 s.area.addEventListener("pointermove",move);s.area.addEventListener("pointerdown",move);
 s.area.addEventListener("pointerleave",event=>{if(event.pointerType!=="touch")clearAll()});
 e.addEventListener("blur",clearAll);
 e.addEventListener("keydown",event=>{
  const k=event.key,fast=event.shiftKey?10:1;
  if(k==="Escape")return clearAll();
  if(s.plot.heat){
   const d={ArrowLeft:[0,-fast],ArrowRight:[0,fast],ArrowUp:[-fast,0],ArrowDown:[fast,0],Home:[0,-1e9],End:[0,1e9]}[k];
   if(d){event.preventDefault();showHeat(s,s.row+d[0],s.column+d[1])}return}
  const d={ArrowLeft:-fast,ArrowRight:fast,Home:-1e9,End:1e9}[k];if(!d)return;
  const curve=s.plot.curves.find(c=>!hidden(c.run)&&data.arrays[c.x].length);if(!curve)return;
  event.preventDefault();const xs=data.arrays[curve.x],i=s.x===null?(d>0&&d<1e9?-1:xs.length):nearest(xs,s.x);
  all(xs[Math.max(0,Math.min(xs.length-1,i+d))])});
}
for(const box of document.querySelectorAll(".state"))box.addEventListener("change",clearAll);
})();
)js";

const char* const kPageScriptSource = "sha256-nU/GdbeFflmmqreQ83jcArY6JrmZS48SXxhPehvnxqA=";

}  // namespace trireme::report
