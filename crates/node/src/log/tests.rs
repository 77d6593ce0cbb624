use super::*;
use std::sync::mpsc;

#[test]
fn smoke() {
    let dir = tempfile::tempdir().unwrap();
    let env = Environment::system();
    let opt = LogOptions { segment_bytes: 8192, cache_bytes: 1000 };
    let path = dir.path().join("log");
    for round in 0..4u64 {
        let (log, recovered) = Log::open(&path, opt, &env).unwrap();
        eprintln!("{round}: {recovered:?} {:?}", log.state());
        let (tx, rx) = mpsc::channel();
        let next = log.state().next;
        for i in next..next + 500 {
            let tx = tx.clone();
            log.append(vec![LogEntry { index: i, body: Bytes::from(vec![i as u8; 100]) }], move |r| tx.send((i, r)).unwrap());
            log.note_committed(i, Bytes::from_static(b"c"));
        }
        log.save_vote(Bytes::from(format!("vote {round}")), |r| r.unwrap());
        for i in next..next + 500 {
            let (j, r) = rx.recv().unwrap();
            assert_eq!(i, j);
            r.unwrap();
        }
        let all = log.read(0..u64::MAX, usize::MAX).unwrap();
        for e in &all { assert_eq!(e.body[..], vec![e.index as u8; 100]); }
        assert_eq!(all.len() as u64, next + 500 - log.state().first);
        if round > 0 { log.purge(round * 500 - 1, Bytes::from_static(b"p"), |r| r.unwrap()); }
        log.close();
        eprintln!("{:?} {:?}", log.stats(), std::fs::read_dir(&path).unwrap().count());
    }
}
