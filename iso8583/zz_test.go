package iso8583
import ("testing";"bufio";"bytes")
func BenchmarkZZ(b *testing.B){ f:=builtFraming(b,FramingConfig{TPDU:TPDUConfig{Request:"6000010002"}}); body:=goldenBody(b,"0100_binary"); stream:=framed(b,f,body); rd:=bytes.NewReader(stream); r:=bufio.NewReader(rd); buf:=make([]byte,0,8192); b.ReportAllocs(); for b.Loop(){ rd.Reset(stream); r.Reset(rd); buf,_=f.Read(r,buf)}; out:=make([]byte,0,8192); _=out }
