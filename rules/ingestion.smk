rule ingestion:
    """Read raw files into documents; a unit per file."""
    input:
        RUN.inputs("ingestion"),
    output:
        RUN.stamp("ingestion"),
    log:
        RUN.log("ingestion"),
    benchmark:
        RUN.benchmark("ingestion")
    conda:
        "../environment.yml"
    threads: RUN.threads("ingestion")
    resources:
        **RUN.resources("ingestion"),
    params:
        job=JOB,
    shell:
        "{params.job} --node ingestion --work {wildcards.work} > {log:q} 2>&1"
